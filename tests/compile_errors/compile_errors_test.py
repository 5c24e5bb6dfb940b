#!/usr/bin/env python3
"""Programs that must not compile: each mistake ends in one error, whose line says what is missing and what to do.

  compile_errors_test.py COMPILER SOURCE_DIR SITE_PACKAGES [CASE ...]

Each file in cases/ is a correct program. A case is a macro that makes one mistake in it, named in the #ifdef, #ifndef or
#elif whose next lines are `// expect: <part of the error's line>` and, optionally, `// expect note: <part of any line>`.

All correct programs and all cases are one source, which is compiled once: each lies in a namespace of its own and, by #line,
in a file of its own, from which its messages are known.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CASES = Path(__file__).parent / "cases"
MACRO = r"^#(?:ifn?def |elif !?defined )(?P<name>\w+)\n"
CASE = re.compile(MACRO + r"\s*// expect: (?P<error>.*)\n(?:\s*// expect note: (?P<note>.*)\n)?", re.MULTILINE)
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers",
         "-ftemplate-backtrace-limit=0"]


class Case(NamedTuple):
    source: Path
    name: str  # of its macro and its namespace
    error: str = ""
    note: str = ""
    is_correct: bool = False


def cases_of(source: Path) -> list[Case]:
    text = source.read_text()
    found = [Case(source, match["name"], match["error"], match["note"] or "") for match in CASE.finditer(text)]
    without_text = set(re.findall(MACRO, text, re.MULTILINE)) - {case.name for case in found}
    if without_text:
        raise SystemExit(f"{source.name}: expected `// expect: ...` below each macro, got none for {sorted(without_text)}")
    return [Case(source, f"correct_{source.stem}", is_correct=True), *found]


def program(cases: list[Case]) -> str:
    sources = {case.source: case.source.read_text() for case in cases}
    parts = sorted({line for text in sources.values() for line in INCLUDE.findall(text)})
    for case in cases:
        parts += [f"#define {case.name} {case.name}", f"namespace {case.name} {{", f'#line 1 "{case.name}.case"',
                  INCLUDE.sub("", sources[case.source]), "}", f"#undef {case.name}"]
    return "\n".join(parts) + "\n"


def messages_by_case(output: str) -> dict[str, list[list[str]]]:
    """For each case its errors, and for each error its lines: the contexts before it, its own and the notes after it.

    Errors that name no case are under "".
    """
    errors: list[list[str]] = []
    context: list[str] = []
    for line in output.splitlines():
        if re.search(r"In (file|instantiation|substitution|function|member function|static member)|: (At|In) |"
                     r":   (required|recursively|in )", line):
            context.append(line)
        elif ": error: " in line:
            errors.append([*context, line])
            context = []
        elif errors:
            errors[-1] += [*context, line]
            context = []
    found: dict[str, list[list[str]]] = {}
    for lines in errors:
        match = re.search(r"(\w+)\.case:", "\n".join(lines))
        name = match[1] if match else ""
        found.setdefault(name, []).append([line.replace(f"{name}::", "") for line in lines] if name else lines)
    return found


def fault(case: Case, errors: list[list[str]]) -> str | None:
    if case.is_correct:
        return "expected it to compile without a macro" if errors else None
    if len(errors) != 1:
        return f"expected one error, got {len(errors)}"
    if not any(": error: " in line and case.error in line for line in errors[0]):
        return f"expected an error with the text\n  {case.error}"
    if not any(case.note in line for line in errors[0]):
        return f"expected a line with the text\n  {case.note}"
    return None


def main() -> None:
    command, source_dir, site_packages, *selected = sys.argv[1:]
    torch = f"{site_packages}/torch/include"
    includes = [f"-I{source_dir}", "-isystem", torch, "-isystem", f"{torch}/torch/csrc/api/include"]
    cases = [case for source in sorted(CASES.glob("*.cpp")) for case in cases_of(source)
             if case.is_correct or not selected or case.name in selected]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "cases.cpp"
        source.write_text(program(cases))
        result = subprocess.run([command, *FLAGS, *includes, source], capture_output=True, text=True,
                                env={**os.environ, "LC_ALL": "C.UTF-8"}, check=False)
    errors = messages_by_case(result.stderr)
    faults = ["error of no case:\n" + "\n".join(lines) for lines in errors.pop("", [])]
    for case in cases:
        own = errors.get(case.name, [])
        problem = fault(case, own)
        print(f"{'ok' if problem is None else 'FAILED'} {case.source.stem}: {case.name}")
        if problem is not None:
            faults.append("\n".join([f"{case.source.name}: {case.name}: {problem}", *(line for lines in own for line in lines)]))
    if faults:
        raise SystemExit("\n\n".join(["", *faults]))


if __name__ == "__main__":
    main()
