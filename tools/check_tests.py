#!/usr/bin/env python3
"""Where tests lie and what their files are called.

tests/<area>/<folder>/ mirrors d9d/<area>/<folder>/: the tests of a file lie in the folder of the same name. Tests of a whole
area lie in tests/<area>/ itself, and what is no area of d9d/ is free (tests/layout, tests/program). A file x_test.cpp opens
the namespace ...::x_test and an unnamed one in it: several files compile as one unit, and helpers of one must not meet
those of another. tests/CMakeLists.txt names a program for each area, or its tests would never run.
"""

import re

import source_tree


def main() -> None:
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    programs = set(re.findall(r"^d9d_test\((\w+)", source_tree.read(root / "tests/CMakeLists.txt"), re.MULTILINE))
    for path in source_tree.files(root, (".cpp",), ("tests",)):
        if not path.name.endswith("_test.cpp"):
            continue
        folder = path.parent.relative_to("tests")
        if folder.parts and (root / "d9d" / folder.parts[0]).is_dir() and not (root / "d9d" / folder).is_dir():
            report.add(path, 1, "test-folder", f"expected tests/ to mirror d9d/, got no folder d9d/{folder}. Move the test to "
                       "the folder of what it tests")
        if folder.parts and folder.parts[0] not in programs:
            report.add(path, 1, "test-program", f"expected a test program that compiles tests/{folder.parts[0]}, got none. Add "
                       f"d9d_test({folder.parts[0]} ...) to tests/CMakeLists.txt")
        text = source_tree.read(root / path)
        if re.search(rf"^namespace d9d(::\w+)*::{path.stem} {{", text, re.MULTILINE) is None:
            first = re.search(r"^namespace d9d", text, re.MULTILINE)
            report.add(path, source_tree.line_of(text, first.start()) if first else 1, "test-namespace",
                       f"expected the namespace to end in ::{path.stem}. Give the file its own")
    report.end()


main()
