#!/usr/bin/env python3
"""docs/api.md: every public type and free function of the installed headers, with its header and its first sentence.

    make_api_index.py [folder]            writes the page
    make_api_index.py --check [folder]    a finding if the page is not what this would write

Public is what stands in a namespace that is not called detail, and in no class. The sentence is the first of the comment
above a declaration, else of the comment above those that it stands in one paragraph with, else of the header.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import source_tree

PAGE = Path("docs/api.md")
AREAS = ("base", "core", "kernels", "modules", "blocks", "parallelism", "models", "model_state", "data", "optim", "lr_scheduler",
         "metrics", "tracker", "tokenizer", "pipelining", "internals", "loop")
HEAD = """\
# Where every type and function is

Written by `tools/make_api_index.py` from the installed headers, whose first lines have an example of their use. Names are in
namespace `d9d`. Left out are namespaces called `detail`, variables, operators, specialisations, and the overloads of
`enum_names` that each enumeration has. [README.md](README.md) has a shorter table by topic.
"""
LEFT_OUT = {"enum_names"}

NOT_A_NAME = {"requires", "decltype", "noexcept", "alignas", "explicit", "__launch_bounds__", "__attribute__", "sizeof"}
TYPE = re.compile(r"\b(?:enum\s+(?:class|struct)|enum|class|struct|union)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*(<)?")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(D9D_\w+)\(", re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.?!](?=\s+[A-Z`(\"]|\s*$)")


class Entry(NamedTuple):
    area: str
    name: str
    header: Path
    sentence: str


class Declaration(NamedTuple):
    name: str  # "" if it is not listed, but may have the comment of its paragraph
    start: int  # offset of its first character


def spaces(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def closing(code: str, start: int) -> int:
    """The offset after the brace that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(code)


def without_angles(text: str, start: int) -> str:
    """`text` without what stands between the < at `start` and its >."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "<":
            depth += 1
        elif text[i] == ">" and text[i - 1] != "-":
            depth -= 1
            if depth == 0:
                return text[:start] + text[i + 1 :]
    return text[:start]


def without_template(statement: str) -> str:
    """Without attributes and template headers: "template <class T> void f(T)" becomes "void f(T)"."""
    statement = re.sub(r"\[\[.*?\]\]", " ", statement, flags=re.DOTALL).strip()
    while match := re.match(r"template\s*<", statement):
        statement = without_angles(statement, match.end() - 1)
        statement = re.sub(r"^template", "", statement).strip()
    return statement


def function_name(statement: str) -> str:
    """Of a declaration; "" for variables, operators, and members that are defined outside of their class."""
    depth = 0
    for match in re.finditer(r"[<>=]|(?<!\w)(\w+)\s*\(|->|\boperator\b", statement):
        if match[0] == "operator" or (match[0] == "=" and depth == 0):
            return ""
        if match[0] in "<>":
            depth += 1 if match[0] == "<" else -1
        elif match[1] and depth == 0 and match[1] not in NOT_A_NAME:
            before = statement[: match.start()].rstrip()
            return "" if before.endswith("::") or not before else match[1]
    return ""


def declared_name(statement: str, has_body: bool) -> str:
    """What a statement of a namespace declares: the name of a type, a concept, an alias or a function; else ""."""
    is_template = statement.lstrip().startswith("template")
    statement = without_template(statement)
    if re.match(r"(friend|extern|static_assert|typedef|template)\b", statement):
        return ""
    if match := re.match(r"(?:using|concept)\s+(\w+)\s*=", statement):
        return match[1]
    if is_template:  # a requires clause stands before what it constrains
        statement = re.sub(r"^requires\s+(?!\()[\w:]+\s*", "", statement)
    match = TYPE.match(statement)
    if match and (has_body or "(" not in statement):
        return match[1] if has_body and not match[2] else ""  # neither forward declarations nor specialisations
    return function_name(statement)


def declarations(code: str) -> list[tuple[str, Declaration]]:
    """(namespace, declaration) of what stands in namespaces, in order. `code`: without comments, strings, directives."""
    found: list[tuple[str, Declaration]] = []
    scopes: list[str] = []
    start = at = 0
    while match := re.compile(r"[{};]").search(code, at):
        statement = code[start : match.start()]
        first = start + len(statement) - len(statement.lstrip())
        at = match.end()
        if match[0] == "}":
            if scopes:
                scopes.pop()
        elif match[0] == "{":
            if namespace := re.match(r"\s*(?:inline\s+)?namespace\b\s*([\w:]*)\s*$", statement):
                scopes.append(namespace[1])
                start = at
                continue
            after = closing(code, match.start())
            goes_on = re.search(r"\brequires\s*(\([^{}]*\))?\s*$", statement) or re.search(r"[=,(]\s*$", statement)
            if goes_on or not is_definition(statement):  # of a requires expression, a value, a default argument
                code = code[: match.start()] + re.sub(r"[^\n]", " ", code[match.start() : after]) + code[after:]
                at = match.start() + 1
                continue
            found.append(("::".join(scopes), Declaration(declared_name(statement, has_body=True), first)))
            at = after
            tail = re.compile(r"\s*;").match(code, after)
            at = tail.end() if tail else after
        elif statement.strip():
            found.append(("::".join(scopes), Declaration(declared_name(statement, has_body=False), first)))
        start = at
    return found


def is_definition(statement: str) -> bool:
    """Whether the brace after `statement` opens the body of a type or a function, and no value."""
    bare = without_template(statement)
    return TYPE.match(bare) is not None or function_name(bare) != "" or "operator" in bare or ")" in bare.split("=")[0]


def first_sentence(comment: list[str]) -> str:
    """Of the first paragraph of a comment, whose lines come without slashes."""
    paragraph = []
    for line in comment:
        if not line.strip() or re.match(r"\s*Example\b", line):
            if paragraph:
                break
            continue
        paragraph.append(line.strip())
    text = " ".join(paragraph)
    end = SENTENCE_END.search(text)
    return (text[: end.start()] if end else text).rstrip(".:;")


def comment_above(lines: list[str], line: int) -> list[str]:
    """The comment lines directly above line `line` (from 0), without their slashes."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("//"):
        first -= 1
    return [re.sub(r"^\s*//+ ?", "", text) for text in lines[first:line]]


def comment_of(lines: list[str], line: int, others: set[int]) -> list[str]:
    """Of a declaration at `line`: the comment above it, beside it, or above the first of its paragraph."""
    if found := comment_above(lines, line):
        return found
    if beside := re.search(r"[;{]\s*// ?(.*)$", lines[line]):
        return [beside[1]]
    above = line - 1
    while above >= 0 and lines[above].strip():
        if above in others and (found := comment_above(lines, above)):
            return found
        above -= 1
    return []


def public_name(namespace: str, name: str) -> str:
    return "::".join(namespace.split("::")[1:] + [name])


def entries_of(root: Path, header: Path) -> list[Entry]:
    text = source_tree.read(root / header)
    lines = text.splitlines()
    bare = source_tree.code_only(text)
    found = declarations(DIRECTIVE.sub(spaces, bare))
    named = [(public_name(namespace, one.name), one.start) for namespace, one in found
             if one.name and one.name not in LEFT_OUT and namespace.split("::")[0] == "d9d" and "detail" not in namespace.split("::")]
    named += [(match[1], match.start()) for match in MACRO.finditer(bare)]
    starts = {source_tree.line_of(text, one.start) - 1 for _, one in found}
    header_comment = re.match(r"(?:\s*//[^\n]*\n)+", text)
    about = [re.sub(r"^\s*//+ ?", "", line) for line in header_comment[0].splitlines()] if header_comment else []
    entries: dict[str, Entry] = {}
    for name, start in named:
        comment = comment_of(lines, source_tree.line_of(text, start) - 1, starts) or about
        if name not in entries:  # of overloads the first
            entries[name] = Entry(header.parts[1], name, header, first_sentence(comment))
    return list(entries.values())


def page(root: Path) -> str:
    entries = [entry for header in source_tree.files(root, (".h", ".cuh"), ("d9d",)) if len(header.parts) > 2
               for entry in entries_of(root, header)]
    areas = [area for area in AREAS if any(entry.area == area for entry in entries)]
    areas += sorted({entry.area for entry in entries} - set(areas))
    parts = [HEAD]
    for area in areas:
        rows = sorted((entry for entry in entries if entry.area == area), key=lambda one: (one.name.lower(), one.name, one.header))
        parts.append(f"\n## {area}\n\n| name | header | is |\n|---|---|---|\n")
        parts += [f"| `{one.name}` | [{one.header.relative_to('d9d')}](../{one.header}) | {source_tree.markdown_cell(one.sentence)} |\n" for one in rows]
    return "".join(parts)


def check(root: Path, expected: str) -> None:
    report = source_tree.Report(root)
    if (root / PAGE).exists():
        ours, theirs = source_tree.read(root / PAGE).splitlines(), expected.splitlines()
        if ours != theirs:
            same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            report.add(PAGE, min(same + 1, len(ours)), "api-index",
                       "expected what the headers declare, got an older page. Run tools/make_api_index.py")
    report.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    if options.check:
        check(options.folder, page(options.folder))
    else:
        (options.folder / PAGE).write_text(page(options.folder), encoding="utf-8")


main()
