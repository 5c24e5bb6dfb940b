#!/usr/bin/env python3
"""Words that do not belong into the sources, mutable globals, and files that grew too long."""

import re
from pathlib import Path
from typing import NamedTuple

import source_tree

MAX_LINES = 600
WARN_LINES = 400

LIBRARY = r"^d9d/"
PROGRAMS = r"^(d9d|examples)/"
EVERYWHERE = r""


class Rule(NamedTuple):
    name: str
    pattern: str
    where: str  # searched in the path
    remedy: str
    unless: str = r"^$"  # paths where the rule does not hold
    # "code": no comments, no strings; "includes": no comments; "prose": comments and strings alone; "text": everything
    view: str = "code"


RULES = [
    Rule("torch-check", r"\b(TORCH_(INTERNAL_)?(CHECK|ASSERT)\w*|AT_(ASSERT|ERROR)\w*)", EVERYWHERE,
         "use D9D_CHECK or D9D_ASSERT (d9d/base/check.h): their errors have a type, a rule and a remedy"),
    Rule("assert", r"(?<![\w.])assert\s*\(", EVERYWHERE, "use D9D_ASSERT: assert() ends the process"),
    Rule("process-exit",
         r"(^\s*|[;{})]\s*|\belse\s+|std::|\s::)(exit|_exit|_Exit|quick_exit|abort|terminate)\s*\(", PROGRAMS,
         "throw an error of d9d/base/check.h: other ranks must hear of it"),
    Rule("getenv", r"\b(secure_)?getenv\s*\(", PROGRAMS, "read it in d9d/base/environment.h or d9d/core/launch",
         unless=r"^d9d/(base/environment|core/launch/)"),
    Rule("setenv", r"\b((un)?setenv|putenv|clearenv)\s*\(", PROGRAMS,
         "set it in d9d/core/launch/library_environment.cpp: threads of cuDNN may read the environment at any time",
         unless=r"^d9d/core/launch/library_environment"),
    Rule("device-synchronize", r"\bcudaDeviceSynchronize\b", PROGRAMS, "wait for an event or a stream, explicitly"),
    Rule("torch-umbrella", r"#\s*include\s*<torch/(torch|all|extension|nn)\.h>", EVERYWHERE,
         "include the ATen or autograd header that declares it: this one takes 18 s", view="includes"),
    Rule("default-random", r"\b(at|torch)::(rand\w*|normal|bernoulli|multinomial|poisson|\w*dropout\w*)\s*\(|"
         r"(\.|->)(uniform_|normal_|random_|bernoulli_?|exponential_|log_normal_|cauchy_|geometric_|multinomial)\s*\(",
         LIBRARY, "use d9d/core/rng: ATen's generators depend on the device, the layout and the call order"),
    Rule("todo", r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", EVERYWHERE, "name the issue, TODO(#12), or do it now",
         view="text"),
    Rule("long-comment", r"^(?=.{121})[ \t]*//.*$", EVERYWHERE, "break it at 120 columns: clang-format leaves comments as they are",
         view="text"),
    Rule("mend", r"\b[Mm]end(s|ed|ing)?\b", LIBRARY, "say correct, change or fix", view="prose"),
    Rule("at-once", r"\b[Aa]t[\s/]+once\b", LIBRARY, "say immediately, or at the same time", view="prose"),
    Rule("comment-begins-with-of", r"(\A|^(?![ \t]*//).*\n)[ \t]*(?P<word>//+[ \t]*Of\b)", LIBRARY,
         "begin with what the comment is about, in a sentence", view="text"),
    Rule("using-namespace", r"\busing\s+namespace\b", r"\.(h|cuh)$", "qualify, or use single names in a function"),
    Rule("main", r"\bmain\s*\(", LIBRARY, "programs live in examples/, benchmarks/ and tests/: this is a library"),
    Rule("thread-local", r"\bthread_local\b", LIBRARY, "pass it: backward runs on other threads than forward",
         unless=r"^d9d/core/autograd/"),
    Rule("version-branch", r"\b(TORCH_VERSION\w*|CUDA(RT)?_VERSION|__GNUC__|__clang_major__)\b", LIBRARY,
         "one version of each dependency is supported: configure refuses the others"),
    Rule("bool-parameter", r"[(,]\s*(const\s+)?bool\s+\w+\s*[,)=]", r"^d9d/blocks/.*\.h$",
         "a block with a switch is two blocks: write two types, or take an enum or a config struct"),
    Rule("suppression",
         r"\bNOLINT(NEXTLINE|BEGIN|END)?\b(\([^)]*\))?(?!\([^)]*\))(?!: *\S)|lint: allow\([\w-]*\)(?!: *\S)",
         EVERYWHERE, "give the reason: NOLINT(check): why", view="text"),
]

SCOPE = re.compile(r"[;{}]")
NAMESPACE = re.compile(r"(^|\s)(namespace\b[\w:\s]*|extern\s*\"\s*\"\s*)$")
NOT_A_VARIABLE = re.compile(
    r"\s*(using|typedef|template|class|struct|enum|union|namespace|friend|static_assert|concept|extern|return|"
    r"thread_local)\b"
)
CONSTANT = re.compile(r"\b(const|constexpr|consteval)\b")
VARIABLE = re.compile(
    r"\s*((static|inline|constinit|volatile)\s+)*[\w:]+(<.*>)?[\s*&]+\w+\s*(\[[^]]*\]\s*)*$", re.DOTALL
)
STATIC = re.compile(r"\bstatic\s+([^;(){}=]*)[;={]")


def is_mutable_variable(statement: str) -> bool:
    declarator = statement.split("=")[0]
    return bool(VARIABLE.match(declarator)) and not NOT_A_VARIABLE.match(declarator) and not CONSTANT.search(declarator)


def mutable_globals(code: str) -> set[int]:
    """Lines of variables at namespace scope and of `static` ones elsewhere, unless constant. Best effort: no parser."""
    code = re.sub(r"^[ \t]*#(.*\\\n)*.*", lambda match: re.sub(r"[^\n]", " ", match[0]), code, flags=re.MULTILINE)
    code = re.sub(r"\[\[.*?\]\]", lambda match: " " * len(match[0]), code)
    lines = set()
    scopes: list[bool] = []  # is each open brace a namespace?
    start = 0
    for match in SCOPE.finditer(code):
        statement = code[start : match.start()]
        first = start + len(statement) - len(statement.lstrip())
        if match[0] != "}" and all(scopes) and is_mutable_variable(statement):
            lines.add(source_tree.line_of(code, first))
        if match[0] == "{":
            scopes.append(NAMESPACE.search(statement.rstrip()) is not None)
        elif match[0] == "}" and scopes:
            scopes.pop()
        start = match.end()
    for match in STATIC.finditer(code):
        if not CONSTANT.search(match[1]):
            lines.add(source_tree.line_of(code, match.start()))
    return lines


def check(root: Path, path: Path, report: source_tree.Report) -> None:
    text = source_tree.read(root / path)
    views = {"text": text, "includes": source_tree.without_comments(text), "code": source_tree.code_only(text),
             "prose": source_tree.prose_only(text)}
    for rule in RULES:
        if not re.search(rule.where, str(path)) or re.search(rule.unless, str(path)):
            continue
        view = views[rule.view]
        for match in re.finditer(rule.pattern, view, re.MULTILINE):
            word = match.groupdict().get("word") or match[0].lstrip(";{}) \t\n")
            line = source_tree.line_of(view, match.end() - len(word))
            report.add(path, line, rule.name, f"got `{' '.join(word.split())}`; {rule.remedy}")
    if re.search(LIBRARY, str(path)):
        for line in sorted(mutable_globals(views["code"])):
            report.add(path, line, "mutable-global", "state needs an owner; make it const, or a member of an object")


def check_length(root: Path, path: Path, report: source_tree.Report) -> None:
    length = len(source_tree.read(root / path).splitlines())
    if length > MAX_LINES:
        report.add(path, length, "file-length", f"{length} lines, at most {MAX_LINES}. Cut it by concept")
    elif length > WARN_LINES:
        print(f"{path}:{length}: warning: {length} lines; is this one concept?")


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    for path in source_tree.files(root):
        check(root, path, report)
    for path in source_tree.files(root, source_tree.CPP + (".py",), source_tree.FOLDERS + ("tools",)):
        check_length(root, path, report)
    report.end()


main()
