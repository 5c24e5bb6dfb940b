"""Renders conversations by a Jinja chat template, as transformers does, and finds what the assistant says.

It reads JSON lines from standard input and answers each on standard output:

    {"template": TEXT, "variables": {"bos_token": "<s>", ..}, "has_marks": false}
                                                                 {"ready": true}, or {"error": ".."}
    {"messages": [..], "tools": [..], "options": {"add_generation_prompt": false, ..}, "with_answers": true}
                                                                 {"text": "..", "answers": [[begin, end], ..]}, or {"problem": ".."}

Positions are bytes of UTF-8. Answers are the {% generation %} blocks of a template that has some. Otherwise they are what the
assistant's messages add to the text, if the text before each of them and the text through it begin the whole.
"""

import datetime
import json
import re
import secrets
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

TODAY = datetime.datetime(2024, 7, 26)  # of templates that write a date: tokens must not depend on the day
REASONING = ("reasoning_content", "thinking", "reasoning")  # keys of one thing in different datasets
BEGIN, END = (f"\ue000{mark}{secrets.token_hex(8)}\ue000" for mark in "be")  # around answers; in no text by chance


class Generation(jinja2.ext.Extension):
    """{% generation %} .. {% endgeneration %}: the body, between marks."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller):
        return BEGIN + caller() + END


class PlainNamespace(jinja2.utils.Namespace):
    """Without names that lead out of the sandbox."""

    def __setitem__(self, name, value):
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the name {name!r} in a namespace")
        super().__setitem__(name, value)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def without_nulls(value):
    """Columns of structs have a null for each key that another row has."""
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return [without_nulls(child) for child in value] if isinstance(value, list) else value


def with_reasoning(message):
    """Under each name that templates read."""
    reasoning = next((message[key] for key in REASONING if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


class Template:
    def __init__(self, text, variables, has_marks):
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals.update(raise_exception=refuse, strftime_now=TODAY.strftime, dict=dict, namespace=PlainNamespace)
        self.template, self.variables, self.has_marks = environment.from_string(text), variables, has_marks

    def marked(self, messages, tools, options):
        return self.template.render(messages=messages, tools=tools, documents=None, **{**self.variables, **options})

    def text(self, messages, tools, options):
        return self.marked(messages, tools, options).replace(BEGIN, "").replace(END, "")

    def answers_between_marks(self, messages, tools, options):
        text, answers, begins = "", [], []
        for piece in re.split(f"({BEGIN}|{END})", self.marked(messages, tools, options)):
            if piece == BEGIN:
                begins.append(len(text))
            elif piece == END:
                answers.append((begins.pop(), len(text)))
            else:
                text += piece
        return text, sorted(answers)

    def answers_by_beginnings(self, messages, tools, options):
        whole, answers = self.text(messages, tools, options), []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before = self.text(messages[:i], tools, {**options, "add_generation_prompt": True})
            through = self.text(messages[:i + 1], tools, {**options, "add_generation_prompt": False})
            fault = None
            if before == self.text(messages[:i], tools, {**options, "add_generation_prompt": False}):
                fault = "it has no beginning of an answer (add_generation_prompt)"
            elif not whole.startswith(before):
                fault = f"its text before message {i} is not the beginning of the whole"
            elif not whole.startswith(through) or len(through) < len(before):
                fault = f"its text through message {i} is not the beginning of the whole"
            if fault:
                raise Unknown(f"{{% generation %}} in no place of the chat template, of which {fault}, so that what the assistant "
                              "says is not known")
            answers.append((len(before), len(through)))
        return whole, answers


class Unknown(Exception):
    pass


def in_bytes(text, positions):
    """Ascending positions."""
    result, at, num_bytes = [], 0, 0
    for position in positions:
        num_bytes += len(text[at:position].encode())
        at = position
        result.append(num_bytes)
    return result


def answer(template, request):
    messages = [with_reasoning(message) for message in without_nulls(request["messages"])]
    tools = without_nulls(request["tools"]) or None
    if not request["with_answers"]:
        return {"text": template.text(messages, tools, request["options"])}
    find = template.answers_between_marks if template.has_marks else template.answers_by_beginnings
    text, answers = find(messages, tools, request["options"])
    ends = sorted(end for pair in answers for end in pair)
    places = dict(zip(ends, in_bytes(text, ends), strict=True))
    return {"text": text, "answers": [[places[begin], places[end]] for begin, end in answers]}


def say(message):
    sys.stdout.buffer.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    template = None
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
            if template is None:
                template = Template(request["template"], request["variables"], request["has_marks"])
                say({"ready": True})
            else:
                say(answer(template, request))
        except jinja2.exceptions.TemplateSyntaxError as error:
            say({"error": f"line {error.lineno}: {error.message}"})
        except Unknown as error:
            say({"problem": str(error)})
        except UnicodeEncodeError:
            say({"problem": "a text that is no UTF-8"})
        except Exception as error:  # whatever a template does
            text = " ".join(str(error).split())
            say({"error" if template is None else "problem": text or type(error).__name__})


main()
