#!/usr/bin/env python3
"""docs/configuration_keys.md: every key of a job file with its type, its default and what it does.

    make_configuration_page.py [--check] <folder of the programs>    --check: a finding if the page is another

Keys, types, ranges and defaults are those of the JSON schemas that the example programs print. What a key does is the
comment at its member in the header of its record, or of a record the first sentence of the record's own comment.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import source_tree

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/configuration_keys.md")
PROGRAMS = ("qwen3_dense_pretrain", "qwen3_moe_pretrain", "qwen3_dense_perplexity", "dpo")
HEAD = """\
# Every key of a job file

Written by `tools/make_configuration_page.py` from what example programs print with `--schema`, and from the comments
of the headers. [configuration.md](configuration.md) says how a file is read. A key without a default is required. Steps are
optimiser steps.
"""


class Member(NamedTuple):
    type: str
    comment: str


class Struct(NamedTuple):
    header: Path
    comment: str
    parameter: str  # of a template: the name of its first parameter
    members: dict[str, Member]
    keys: dict[str, str]  # JSON key -> member
    flattened: list[str]  # members whose keys stand beside the record's own


# What the headers say ------------------------------------------------------------------------------------------------
def statements(body: str):
    """(code, comment) of each statement of a struct: the comment above it, or beside it."""
    above, beside, code, depth = [], [], [], 0
    for line in body.splitlines() + [""]:
        text, slashes, comment = line.partition("//")
        if slashes and not text.strip() and not code:
            if beside and len(text) > 2:  # goes on below
                beside[-1][1].append(comment.strip())
            else:
                above.append(comment.strip())
            continue
        if not line.strip() and not code:
            above = []
        if text.strip():
            code.append(text.strip())
            depth += text.count("{") - text.count("}")
        if slashes and code and depth == 0:
            above.append(comment.strip())
        if code and depth == 0 and code[-1][-1] in ";}":
            beside.append((" ".join(code), above))
            above, code = [], []
    return [(statement, " ".join(comment)) for statement, comment in beside]


def structs_of(path: Path) -> dict[str, Struct]:
    text = source_tree.read(ROOT / path)
    found = {}
    pattern = r"((?:^//[^\n]*\n)*)(?:^template <class (\w+)>\n)?^struct (\w+)[^;{}]*\{ *(?://([^\n]*))?\n(.*?)^\};"
    for above, parameter, name, beside, body in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
        comment = " ".join(re.sub(r"^// ?", "", above, flags=re.MULTILINE).split()) or beside
        members, keys, flattened = {}, None, []
        for code, said in statements(body):
            if "fields()" in code:
                keys = dict(re.findall(r'(?:required|defaulted)\("(\w+)", &\w+::(\w+)', code))
                flattened = re.findall(r"flattened\(&\w+::(\w+)\)", code)
            elif member := re.fullmatch(r"([\w:<>, ]+?) (\w+)(?: =.*)?;", code):
                members[member[2]] = Member(member[1], said)
        if keys is not None:
            found[name] = Struct(path, comment.strip(), parameter, members, keys, flattened)
    return found


def arguments(title: str) -> tuple[str, str]:
    """DataOf<TextSource> is (DataOf, TextSource)."""
    name, _, rest = title.partition("<")
    return name, rest.removesuffix(">")


class Headers:
    def __init__(self):
        paths = source_tree.files(ROOT, (".h",), ("d9d", "examples"))
        self.structs = {name: struct for path in paths for name, struct in structs_of(path).items()}

    def find(self, title: str) -> Struct:
        name, _ = arguments(title)
        if name not in self.structs:
            sys.exit(f"{PAGE}: expected a record {name} in a header, got none. Which shape does it have there?")
        return self.structs[name]

    def parts(self, title: str) -> list[str]:
        """Titles of the records whose keys stand beside those of this one."""
        struct = self.find(title)
        types = [struct.members[member].type for member in struct.flattened]
        return [arguments(title)[1] if type == struct.parameter else type for type in types]

    def comment(self, title: str, key: str) -> str:
        struct = self.find(title)
        return struct.members[struct.keys[key]].comment


# The page ------------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    types: list[str]
    default: str
    about: str


class Page:
    def __init__(self):
        self.headers = Headers()
        self.records: dict[str, dict[str, Row]] = {}  # name -> key -> row, in the order of the page
        self.about: dict[str, str] = {}
        self.missing: list[str] = []

    def name_of(self, schema: dict) -> str:
        """That of a section of the page: without arguments of a template, unless its keys are those of an argument."""
        return schema["title"] if self.headers.parts(schema["title"]) else arguments(schema["title"])[0]

    def link(self, name: str, text: str = "") -> str:
        return f"[{text or source_tree.markdown_cell(name)}](#{re.sub('[<>]', '', name.lower())})"

    def types_of(self, schema: dict) -> list[str]:
        return [self.type_of(each) for each in schema.get("anyOf", [schema])]

    def type_of(self, schema: dict) -> str:
        """In words, with links to records."""
        if "anyOf" in schema:
            return " or ".join(self.types_of(schema))
        if "oneOf" in schema:
            tags = [self.tag_of(each) for each in schema["oneOf"]]
            key = next(tag[0] for tag in tags if tag)
            links = [self.link(self.name_of(each), f"`{tag[1]}`" if tag else f"without `{key}`")
                     for each, tag in zip(schema["oneOf"], tags)]
            return f"by `{key}`: " + ", ".join(links)
        if "const" in schema:
            return f"`{json.dumps(schema['const'])}`"
        if "enum" in schema:
            return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
        if "title" in schema:
            return self.link(self.name_of(schema))
        kind = schema.get("type")
        if kind == "array":
            items = schema.get("prefixItems")
            return f"[{', '.join(map(self.type_of, items))}]" if items else f"list of {self.type_of(schema['items'])}"
        if kind == "object":
            inner = schema.get("additionalProperties")
            return f"object of names, each {self.type_of(inner)}" if inner else f"`{{\"{schema['required'][0]}\": ...}}`"
        words = {"boolean": "true or false", None: "any"}.get(kind, kind)
        signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
        bounds = " and ".join(f"{sign} {schema[bound]:g}" for bound, sign in signs.items() if bound in schema)
        return f"{words} {bounds}".rstrip()

    def tag_of(self, schema: dict) -> tuple[str, str] | None:
        return next(((key, value["const"]) for key, value in schema["properties"].items() if "const" in value), None)

    def changed(self, default, schema: dict):
        """A default without the keys that have their own default."""
        if isinstance(default, dict):
            for each in schema.get("anyOf", []) + schema.get("oneOf", []) + [schema]:
                properties = each.get("properties", {})
                tag = self.tag_of(each) if properties else None
                if properties.keys() >= default.keys() and (tag is None or default.get(tag[0]) == tag[1]):
                    return {key: self.changed(value, properties[key]) for key, value in default.items()
                            if properties[key].get("default", ...) != value}
        return default

    def default_of(self, schema: dict, is_required: bool) -> str:
        return "" if is_required else f"`{json.dumps(self.changed(schema['default'], schema))}`"

    def description(self, title: str, key: str, schema: dict) -> str:
        if said := self.headers.comment(title, key):
            return said
        records = [each for each in [schema, *schema.get("anyOf", [])] if "title" in each]
        if not records:
            self.missing.append(f"{self.headers.find(title).header}: expected a comment at the member of {title} for the key "
                                f"'{key}', got none. Say what the key does")
        return re.split(r"(?<=\.) ", self.headers.find(records[0]["title"]).comment)[0] if records else ""

    def add_section(self, title: str, name: str, schema: dict) -> None:
        struct = self.headers.find(title)
        rows = self.records.setdefault(name, {})
        for key in struct.keys:
            value = schema["properties"][key]
            row = Row(self.types_of(value), self.default_of(value, key in schema["required"]), self.description(title, key, value))
            if key in rows:  # the same template with other arguments
                row = row._replace(types=list(dict.fromkeys(rows[key].types + row.types)))
            rows[key] = row
        tag = self.tag_of(schema) if schema["title"] == title else None
        about = [f"`{{\"{tag[0]}\": \"{tag[1]}\"}}`," if tag else "", f"[{struct.header}](../{struct.header}).",
                 source_tree.markdown_cell(struct.comment)]
        if parts := self.headers.parts(title):
            about.append(f"{'Also' if rows else 'Has'} the keys of {' and '.join(map(self.link, parts))}.")
        self.about[name] = " ".join(filter(None, about))
        for part in self.headers.parts(title):
            self.add_section(part, part, schema)

    def add(self, schema: dict) -> None:
        """Sections of all records in this value, outer ones first."""
        if "title" in schema:
            self.add_section(schema["title"], self.name_of(schema), schema)
        inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("oneOf", []),
                 *schema.get("prefixItems", []), schema.get("items"), schema.get("additionalProperties")]
        for each in inner:
            if isinstance(each, dict):
                self.add(each)

    def add_program(self, program: Path) -> None:
        self.add(json.loads(subprocess.run([program, "--schema"], check=True, capture_output=True, text=True).stdout))

    def markdown(self) -> str:
        parts = [HEAD]
        for name, rows in self.records.items():
            parts.append(f"\n## {source_tree.markdown_cell(name)}\n\n{self.about[name]}\n")
            if rows:
                parts.append("\n| key | type | default | |\n|---|---|---|---|\n")
                parts += [f"| `{key}` | {' or '.join(row.types)} | {row.default} | {source_tree.markdown_cell(row.about)} |\n"
                          for key, row in rows.items()]
        return "".join(parts)


def check(expected: str) -> None:
    report = source_tree.Report(ROOT)
    ours, theirs = source_tree.read(ROOT / PAGE).splitlines(), expected.splitlines()
    if ours != theirs:
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        report.add(PAGE, min(same + 1, len(ours)), "configuration-page",
                   f"expected {theirs[same:same + 1]}, got an older page. Run tools/make_configuration_page.py <programs>")
    report.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("programs", type=Path)
    options = parser.parse_args()
    page = Page()
    for program in PROGRAMS:
        page.add_program(options.programs.resolve() / program)
    if page.missing:
        sys.exit("\n".join(dict.fromkeys(page.missing)))
    if options.check:
        check(page.markdown())
    else:
        (ROOT / PAGE).write_text(page.markdown(), encoding="utf-8")


main()
