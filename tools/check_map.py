#!/usr/bin/env python3
"""Whether pages that say where things are still do.

The table "Where is ...?" of docs/README.md: each file defines what its row names. The floors of docs/architecture.md: those of
the rule in check_include_graph.py, which prints them with --floors.
"""

import re
import subprocess
import sys
from pathlib import Path

import source_tree

ROW = re.compile(r"^\| [^|]+ \| `(?P<name>\w+)` \| \[[^\]]+\]\((?P<path>[^)]+)\) \|$", re.MULTILINE)
FLOORS = re.compile(r"^<!-- floors -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def defines(text: str, name: str) -> bool:
    text = source_tree.without_comments(text)
    is_type = re.search(rf"\b(class|struct|concept|using|define)\s+{name}\b", text)
    return is_type is not None or re.search(rf"^[^\n=]*\b{name}\(", text, re.MULTILINE) is not None


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    pages = Path("docs/README.md"), Path("docs/architecture.md")
    if all((root / page).exists() for page in pages):
        text = source_tree.read(root / pages[0])
        for row in ROW.finditer(text):
            file = root / "docs" / row["path"]
            if not file.exists() or not defines(source_tree.read(file), row["name"]):
                report.add(pages[0], source_tree.line_of(text, row.start()), "map",
                           f"expected {row['path']} to define {row['name']}. Correct the row")
        text = source_tree.read(root / pages[1])
        drawn = FLOORS.search(text)
        tool = Path(__file__).parent / "check_include_graph.py"
        floors = subprocess.run([sys.executable, tool, "--floors"], capture_output=True, text=True, check=True).stdout
        if drawn is None or drawn[1] != floors:
            report.add(pages[1], source_tree.line_of(text, drawn.start()) if drawn else 1, "map",
                       "expected the floors that tools/check_include_graph.py --floors prints. Replace them")
    report.end()


main()
