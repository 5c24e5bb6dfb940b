#!/usr/bin/env python3
"""Whether each file of CUDA kernels says first what it computes and how: formula, legend, mapping (what a block, a warp
or a thread does), numerics and memory traffic, in comment lines that begin with these words."""

import itertools
import re
from pathlib import Path

import source_tree

LABELS = ("Formula", "Legend", "Mapping", "Numerics", "Traffic")


def labels_of(text: str) -> tuple[str, ...]:
    """The labels of the comment that the file begins with."""
    comment = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
    return tuple(match[1] for line in comment if (match := re.match(rf"// ({'|'.join(LABELS)}): +\S", line)))


def check(root: Path, path: Path, report: source_tree.Report) -> None:
    text = source_tree.read(root / path)
    if "__global__" not in source_tree.code_only(text):
        return
    if labels_of(text) != LABELS or not text.startswith(f"// {LABELS[0]}: "):
        report.add(path, 1, "kernel-header",
                   "expected the file to begin with comment lines `// " + ": ...`, `// ".join(LABELS) + ": ...`. "
                   "Say what the kernels compute and what a block, a warp and a thread do")


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    for path in source_tree.files(root, (".cu",), ("d9d/kernels",)):
        check(root, path, report)
    report.end()


main()
