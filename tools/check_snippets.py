#!/usr/bin/env python3
"""Code in Markdown pages: each block names the file that it is cut out of, and stands there.

    <!-- from examples/quickstart/main.cpp -->
    ```cpp
    the lines of the file, at any indentation
      ...
    later lines of the file
    ```

A line `...` leaves lines out. What no program has is in tests/docs, which is compiled and not run.
"""

import re
from pathlib import Path

import source_tree

CODE = ("cpp", "cu", "cmake", "python")
BLOCK = re.compile(r"^(?:<!-- from (?P<source>\S+) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def pages(root: Path) -> list[Path]:
    at_root = sorted(path.relative_to(root) for path in root.glob("*.md"))
    return at_root + source_tree.files(root, (".md",), source_tree.FOLDERS + ("docs",))


def stripped(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines]


def find(lines: list[str], part: list[str], start: int) -> int | None:
    """Where `part` stands in `lines` from `start` on."""
    return next((i for i in range(start, len(lines) - len(part) + 1) if lines[i : i + len(part)] == part), None)


def problem(root: Path, source: str | None, code: str) -> tuple[int, str] | None:
    """(line of the block, what is wrong with it); None if the code is the source's."""
    if source is None:
        return 1, "expected <!-- from FILE --> above a block of code, got none. Name the file, or use one of tests/docs"
    if not (root / source).is_file():
        return 1, f"expected a file of this repository, got {source}. Correct the path"
    lines, block = stripped(source_tree.read(root / source).splitlines()), stripped(code.splitlines())
    at, start = 0, 0
    while start < len(block):
        end = block.index("...", start) if "..." in block[start:] else len(block)
        part = block[start:end]
        found = find(lines, part, at)
        if found is None:
            known = next(n for n in range(len(part)) if find(lines, part[: n + 1], at) is None)
            return start + known + 1, f"{source} does not go on with this line. Copy it from there again"
        at, start = found + len(part), end + 1
    return None


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    for page in pages(root):
        text = source_tree.read(root / page)
        for match in BLOCK.finditer(text):
            if match["language"] not in CODE:
                continue
            found = problem(root, match["source"], match["code"])
            if found:
                fence = source_tree.line_of(text, match.start("code")) - 1
                report.add(page, fence + found[0], "snippet", found[1])
    report.end()


main()
