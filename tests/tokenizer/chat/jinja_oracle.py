"""jinja_oracle.py COUNT: COUNT random conversations for each chat template of the trl wheel, and for some that nobody has
published, as transformers renders them.

Prints a JSON list of {"name", "template", "variables", "chats"}; a chat has "messages", "tools", "add_generation_prompt", "text"
(null: the template refuses it) and "answers", ranges of bytes (null: the template has no {% generation %} blocks).
"""

import datetime
import importlib.util
import json
import random
import sys
from pathlib import Path

from transformers.utils import chat_template_utils

PIECES = ("Hi", " ", "\n", "\r\n", "<|im_end|>", "</s>", "{{ x }}", "\u2028", "what is 2 + 2?", "Ü", "日本語", "🙂", '"quoted"', "<think>\nhm\n</think>\n\n", "a b", "\\n")
SCHEMAS = [True, None, 2, -0.5, 1e30, "ü", [], {"z": None, "a": [1, "b"]}]
OWN = {
    "merges_system": "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
                     "{% set ns.system = m.content %}{% elif m.role == 'user' %}[INST] {{ ns.system if loop.index0 <= 1 }}"
                     "{{ m.content | trim }} [/INST]{% elif m.role == 'assistant' %} {% generation %}{{ m.content | trim }}"
                     "{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
    "part_of_answers": "{% macro head(m) %}<{{ m.role }}>{% endmacro %}{% for m in messages %}{{ head(m) | upper }}{% if m.role == "
                       "'assistant' %}{%- generation -%} {{ m.content }}{%- endgeneration %}{{ m.reasoning_content }}</s>"
                       "{% else %}{{ m.content }}{% endif %}{{ loop.index0 }}{% endfor %}{{ strftime_now('%d %b %Y') }}",
    "strict_order": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}"
                    "{% endif %}{% generation %}{{ m.content if m.role == 'assistant' }}{% endgeneration %}"
                    "{{ m.content if m.role != 'assistant' }}|{% endfor %}",
    "whole": "{% for m in messages %}{{ m | tojson(indent=2) }}{{ dict(m, x=1) }}{% if loop.last %}{% break %}{% endif %}"
             "{% endfor %}{{ tools is none }}{{ tools }}{{ documents is none }}{{ add_generation_prompt }}",
}
VARIABLES = {"bos_token": "<|begin_of_text|>", "eos_token": "</s>"}


class Today(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, tzinfo=tz)


def tools_with(default):
    properties = {"b": {"type": "integer", "description": "b", "default": default}, "a": {"type": "integer", "description": "a"}}
    return [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
        "type": "object", "properties": properties, "required": ["a"]}}}]


def content():
    if random.random() < 0.06:
        return random.choice(("", None, [{"type": "text", "text": "part"}]))
    return "".join(random.choice(PIECES) for _ in range(random.randrange(1, 5)))


def conversation(tools):
    messages = [{"role": "system", "content": content()}] if random.random() < 0.4 else []
    for _ in range(random.randrange(1, 4)):
        messages.append({"role": "user", "content": content()})
        answer = {"role": "assistant", "content": content()}
        if random.random() < 0.3:
            answer[random.choice(("reasoning_content", "thinking", "reasoning"))] = content()
        if tools and random.random() < 0.5:
            call = {"type": "function", "function": {"name": "add", "arguments": {"b": random.choice(SCHEMAS), "a": "ü"}}}
            if random.random() < 0.3:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            messages += [{**answer, "tool_calls": [call]}, {"role": "tool", "name": "add", "content": content()},
                         {"role": "assistant", "content": content()}]
        else:
            messages.append(answer)
    return messages


def in_bytes(text, ranges):
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in sorted(ranges) if begin < end]


def rendered(template, messages, tools, prompts):
    marks = "generation %}" in template or "generation -%}" in template
    named = [{key: value for key, value in message.items() if value is not None} for message in messages]  # as its caller does
    try:
        (text,), ranges = chat_template_utils.render_jinja_template(
            [named], tools=tools, chat_template=template, return_assistant_tokens_mask=marks, add_generation_prompt=prompts,
            **VARIABLES)
    except Exception:
        return {"text": None, "answers": None}
    return {"text": text, "answers": in_bytes(text, ranges[0]) if marks else None}


def main():
    chat_template_utils.datetime = Today
    random.seed(0)
    (package,) = importlib.util.find_spec("trl").submodule_search_locations  # its files: the code is not imported
    cases = []
    published = {path.stem: path.read_text() for path in sorted((Path(package) / "chat_templates").glob("*.jinja"))}
    for name, template in {**published, **OWN}.items():
        case = {"name": name, "template": template, "variables": VARIABLES, "chats": []}
        for number in range(int(sys.argv[1])):
            tools, prompts = tools_with(random.choice(SCHEMAS)) if number % 3 == 2 else None, random.random() < 0.3
            messages = conversation(tools)
            case["chats"].append({"messages": messages, "tools": tools, "add_generation_prompt": prompts,
                                  **rendered(case["template"], messages, tools, prompts)})
        cases.append(case)
    print(json.dumps(cases))


main()
