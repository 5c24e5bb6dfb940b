#!/usr/bin/env python3
"""The table "Where is ...?" of docs/README.md: whether each file defines what its row names."""

import re
from pathlib import Path

import source_tree

ROW = re.compile(r"^\| [^|]+ \| `(?P<name>\w+)` \| \[[^\]]+\]\((?P<path>[^)]+)\) \|$", re.MULTILINE)


def defines(text: str, name: str) -> bool:
    text = source_tree.without_comments(text)
    is_type = re.search(rf"\b(class|struct|concept|using|define)\s+{name}\b", text)
    return is_type is not None or re.search(rf"^[^\n=]*\b{name}\(", text, re.MULTILINE) is not None


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    page = Path("docs/README.md")
    text = source_tree.read(root / page) if (root / page).exists() else ""
    for row in ROW.finditer(text):
        file = root / "docs" / row["path"]
        if not file.exists() or not defines(source_tree.read(file), row["name"]):
            report.add(page, source_tree.line_of(text, row.start()), "map",
                       f"expected {row['path']} to define {row['name']}. Correct the row")
    report.end()


main()
