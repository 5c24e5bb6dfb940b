#!/usr/bin/env python3
"""Relative links of Markdown pages: the file is there, and so is the heading behind a #."""

import re
from pathlib import Path

import source_tree

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#+[ \t]+(.*)$", re.MULTILINE)


def pages(root: Path) -> list[Path]:
    at_root = sorted(path.relative_to(root) for path in root.glob("*.md"))
    return at_root + source_tree.files(root, (".md",), source_tree.FOLDERS + ("docs", "tools"))


def spaces(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def headings(page: Path) -> set[str]:
    """As GitHub names them: lower case, punctuation dropped, spaces become dashes."""
    titles = HEADING.findall(FENCE.sub(spaces, source_tree.read(page)))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def problem(root: Path, page: Path, link: str) -> str | None:
    if re.match(r"[a-z]+:", link):
        return None
    name, _, heading = link.partition("#")
    target = (root / page).parent / name if name else root / page
    if not target.exists():
        return f"expected a link to a file that is there, got {link}. Correct the path"
    if heading and target.suffix == ".md" and heading not in headings(target):
        return f"expected a heading of {target.name} behind #, got {link}. Its headings are in lower case with dashes"
    return None


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    for page in pages(root):
        text = CODE.sub(spaces, FENCE.sub(spaces, source_tree.read(root / page)))
        for match in LINK.finditer(text):
            found = problem(root, page, match[1])
            if found:
                report.add(page, source_tree.line_of(text, match.start(1)), "broken-link", found)
    report.end()


main()
