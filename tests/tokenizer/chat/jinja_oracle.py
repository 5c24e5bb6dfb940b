"""jinja_oracle.py COUNT: COUNT random conversations for each chat template of the trl wheel, as transformers renders them.

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

PIECES = ("Hi", " ", "\n", "what is 2 + 2?", "Ü", "日本語", "🙂", '"quoted"', "<think>\nhm\n</think>\n\n", "a b", "\\n")
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}, "required": ["a"]}}}]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


class Today(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, tzinfo=tz)


def content():
    return "".join(random.choice(PIECES) for _ in range(random.randrange(1, 5)))


def conversation(tools):
    messages = [{"role": "system", "content": content()}] if random.random() < 0.4 else []
    for _ in range(random.randrange(1, 4)):
        messages.append({"role": "user", "content": content()})
        answer = {"role": "assistant", "content": content()}
        if random.random() < 0.3:
            answer["reasoning_content"] = content()
        if tools and random.random() < 0.5:
            call = {"type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": "ü"}}}
            messages += [{**answer, "tool_calls": [call]}, {"role": "tool", "name": "add", "content": content()},
                         {"role": "assistant", "content": content()}]
        else:
            messages.append(answer)
    return messages


def in_bytes(text, ranges):
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in sorted(ranges)]


def rendered(template, messages, tools, prompts):
    marks = "generation %}" in template or "generation -%}" in template
    try:
        (text,), ranges = chat_template_utils.render_jinja_template(
            [messages], tools=tools, chat_template=template, return_assistant_tokens_mask=marks, add_generation_prompt=prompts,
            **VARIABLES)
    except Exception:
        return {"text": None, "answers": None}
    return {"text": text, "answers": in_bytes(text, ranges[0]) if marks else None}


def main():
    chat_template_utils.datetime = Today
    random.seed(0)
    (package,) = importlib.util.find_spec("trl").submodule_search_locations  # its files: the code is not imported
    cases = []
    for path in sorted((Path(package) / "chat_templates").glob("*.jinja")):
        case = {"name": path.stem, "template": path.read_text(), "variables": VARIABLES, "chats": []}
        for number in range(int(sys.argv[1])):
            tools, prompts = TOOLS if number % 3 == 2 else None, random.random() < 0.3
            messages = conversation(tools)
            case["chats"].append({"messages": messages, "tools": tools, "add_generation_prompt": prompts,
                                  **rendered(case["template"], messages, tools, prompts)})
        cases.append(case)
    print(json.dumps(cases))


main()
