"""Renders conversations by a Jinja chat template, as transformers does, and finds what the assistant says.

It reads JSON lines from standard input and answers each on standard output:

    {"template": {"text": TEXT, "has_marks": false}, "template_with_tools": null, "variables": {"bos_token": "<s>", ..}}
                                                                 {"ready": true}, or {"error": ".."}
    {"messages": [..], "tools": [..], "options": {"add_generation_prompt": false, ..}, "with_answers": true}
                                                                 {"text": "..", "answers": [[begin, end], ..]}, or {"problem": ".."}

Positions are bytes of UTF-8. Answers are the {% generation %} blocks of a template that has some. Otherwise they are what the
assistant's messages add to the text, if the text before each of them and the text through it begin the whole. A template is
somebody's program: what it may do, hold in memory and take in time has limits.
"""

import datetime
import json
import re
import resource
import secrets
import signal
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

if tuple(int(number) for number in re.findall(r"\d+", jinja2.__version__)[:3]) < (3, 1, 6):
    sys.exit(f"jinja2 {jinja2.__version__}, whose sandbox has known ways out: 3.1.6 or later is expected")

MOST_MEMORY = 4 << 30  # bytes
MOST_SECONDS = 120  # of one conversation; who asked has given up by then, or is no more
TODAY = datetime.datetime(2024, 7, 26)  # of templates that write a date: tokens must not depend on the day
REASONING = ("reasoning_content", "thinking", "reasoning")  # keys of one thing in different datasets
BEGIN, END = (f"\ue000{mark}{secrets.token_hex(8)}\ue000" for mark in "be")  # around answers; in no text by chance


class Generation(jinja2.ext.Extension):
    """{% generation %} .. {% endgeneration %}: the body, between marks."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(writes_marks=False)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller):
        return BEGIN + caller() + END if self.environment.writes_marks else caller()


def is_generation(node):
    return isinstance(node, jinja2.nodes.CallBlock) and isinstance(node.call.node, jinja2.nodes.ExtensionAttribute)


def has_captured_marks(tree):
    """Whether a {% generation %} stands where its text becomes a value, of which a template may write less or more."""
    nodes = jinja2.nodes
    around = tree.find_all((nodes.Macro, nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock))
    return any(is_generation(block) for node in around if not is_generation(node) for block in node.find_all(nodes.CallBlock))


class PlainNamespace(jinja2.utils.Namespace):
    """Without names that lead out of the sandbox."""

    def __init__(*arguments, **named):  # `self` may be a name in it
        self, values = arguments[0], dict(*arguments[1:], **named)
        for name in values:
            PlainNamespace.check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        PlainNamespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the name {name!r} in a namespace")


class PlainDict:
    """dict, without what else a class has."""

    def __call__(self, *arguments, **named):
        return dict(*arguments, **named)

    def fromkeys(self, *arguments):
        return dict.fromkeys(*arguments)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def messages_of(values):
    if not isinstance(values, list) or not values:
        raise Refused(f"messages: expected a list of messages, got {json.dumps(values)[:100]}")
    for i, value in enumerate(values):
        if isinstance(value, dict) and "from" in value and "value" in value and "role" not in value:
            raise Refused(f'messages.{i}: expected "role" and "content", got "from" and "value", as ShareGPT has them. '
                          "Rename the keys, and the roles: human is user, gpt is assistant")
        if not isinstance(value, dict) or not isinstance(value.get("role"), str):
            raise Refused(f'messages.{i}: expected an object with "role" and "content", got {json.dumps(value)[:100]}')
    return [with_reasoning(value) for value in values]


def tools_of(values):
    if values is not None and not (isinstance(values, list) and all(isinstance(value, dict) for value in values)):
        raise Refused(f"tools: expected a list of JSON schemas, got {json.dumps(values)[:100]}")
    return values or None


def with_reasoning(message):
    """Without keys of null, and with the reasoning under each name that templates read."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


class Template:
    def __init__(self, text, has_marks, variables):
        self.environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        self.environment.filters["tojson"] = to_json
        self.environment.globals.update(
            raise_exception=refuse, strftime_now=TODAY.strftime, dict=PlainDict(), namespace=PlainNamespace)
        self.has_marks, self.captures = has_marks, has_captured_marks(self.environment.parse(text))
        self.template, self.variables = self.environment.from_string(text), variables

    def text(self, messages, tools, options, writes_marks=False):
        self.environment.writes_marks = writes_marks
        variables = {"messages": messages, "tools": tools, "documents": None, **self.variables, **options}
        return self.template.render(variables)

    def answers_between_marks(self, messages, tools, options):
        text, answers, begins = "", [], []
        for piece in re.split(f"({BEGIN}|{END})", self.text(messages, tools, options, writes_marks=True)):
            if piece == BEGIN:
                begins.append(len(text))
            elif piece == END:
                begin = begins.pop()
                if not begins and begin < len(text):  # what is within another block is of that
                    answers.append((begin, len(text)))
            else:
                text += piece
        if self.captures and text != self.text(messages, tools, options):
            raise Refused("{% generation %} in a macro, set, filter or call block, whose text the chat template changes "
                          "afterwards, so that what the assistant says is not known")
        return text, answers

    def answers_by_beginnings(self, messages, tools, options):
        whole, answers = self.text(messages, tools, options), []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                before = self.text(messages[:i], tools, {**options, "add_generation_prompt": True})
                through = self.text(messages[:i + 1], tools, {**options, "add_generation_prompt": False})
            except jinja2.exceptions.TemplateError as error:
                raise Unknown(f"it does not write the messages before or through message {i} alone ({one_line(error)})") from error
            if not whole.startswith(before):
                raise Unknown(f"its text before message {i} is not the beginning of the whole")
            if not whole.startswith(through) or len(through) < len(before):
                raise Unknown(f"its text through message {i} is not the beginning of the whole")
            if not begins_with_content(through[len(before):], message) and not self.prompts_answers(messages[:i], tools, options):
                raise Unknown("it has no beginning of an answer (add_generation_prompt)")
            answers.append((len(before), len(through)))
        return whole, answers

    def prompts_answers(self, messages, tools, options):
        prompted, plain = (self.text(messages, tools, {**options, "add_generation_prompt": prompts}) for prompts in (True, False))
        return prompted != plain


def begins_with_content(text, message):
    """So that nothing precedes the answer, as in templates that end each question, such as those of Mistral."""
    content = message.get("content")
    return isinstance(content, str) and content.strip() != "" and text.lstrip().startswith(content.strip())


class Refused(Exception):
    pass


class Unknown(Refused):
    def __init__(self, fault):
        super().__init__(f"{{% generation %}} in no place of the chat template, of which {fault}, so that what the assistant "
                         "says is not known")


def one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


def in_bytes(text, positions):
    """Ascending positions."""
    result, at, num_bytes = [], 0, 0
    for position in positions:
        num_bytes += len(text[at:position].encode())
        at = position
        result.append(num_bytes)
    return result


def answer(templates, request):
    messages, tools = messages_of(request["messages"]), tools_of(request["tools"])
    template = templates["without" if tools is None else "with"]
    if not request["with_answers"]:
        return {"text": template.text(messages, tools, request["options"])}
    find = template.answers_between_marks if template.has_marks else template.answers_by_beginnings
    text, answers = find(messages, tools, request["options"])
    ends = in_bytes(text, [end for pair in answers for end in pair])
    return {"text": text, "answers": list(zip(ends[::2], ends[1::2], strict=True))}


def templates_of(request):
    variables, with_tools = request["variables"], request["template_with_tools"]
    without = Template(**request["template"], variables=variables)
    return {"without": without, "with": Template(**with_tools, variables=variables) if with_tools else without}


def say(message):
    sys.stdout.buffer.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY if most == resource.RLIM_INFINITY else min(MOST_MEMORY, most), most))
    templates = None
    for line in sys.stdin.buffer:
        signal.alarm(MOST_SECONDS)  # ends this process
        try:
            request = json.loads(line)
            if templates is None:
                templates, reply = templates_of(request), {"ready": True}
            else:
                reply = answer(templates, request)
        except jinja2.exceptions.TemplateSyntaxError as error:
            reply = {"error": f"line {error.lineno}: {error.message}"}
        except Exception as error:  # whatever a template does
            text = f"more than {MOST_MEMORY >> 30} GiB for one conversation" if isinstance(error, MemoryError) else one_line(error)
            reply = {"error" if templates is None else "problem": text}
        signal.alarm(0)
        try:
            say(reply)
        except UnicodeEncodeError:
            say({"problem": "a text that is no UTF-8"})


main()
