"""A build without nvcc must link: no_cuda.cpp must define the symbols that other files need from the missing ones
(those in folders `cuda`).

The symbols are read from the objects of a build with nvcc, which compiles both; linking them would need a second build.
"""

import subprocess
import sys
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop())
SOURCE = Path(__file__).resolve().parents[2]
STUBS = "d9d_no_cuda.dir"
OTHERS = ("d9d_cuda.dir", "d9d_cudnn.dir")  # libraries that such a build lacks


def objects_of(folder, sources):
    """Only the objects of sources that still exist; those of several sources at a time lie beside the file that includes them."""
    for item in folder.rglob("*.o"):
        target, *parts = item.relative_to(folder).parts
        source = sources.joinpath(*(".." if part == "__" else part for part in parts)).with_suffix("")  # as CMake names it
        if target not in OTHERS and (source.exists() or item.with_suffix("").exists()):
            yield item


def symbols(objects):
    """Defined symbols (not weak), and undefined ones with an object that needs each."""
    listing = subprocess.run(["nm", "-A", "--no-sort", *objects], capture_output=True, text=True, check=True).stdout
    defined, undefined = set(), {}
    for item, _, line in (line.partition(":") for line in listing.splitlines()):
        kind, name = line.split()[-2:]
        if kind == "U":
            undefined.setdefault(name, item)
        elif kind in "TDBR":
            defined.add(name)
    return defined, undefined


def is_missing(item):
    return item.parent.name == "cuda"


class WithoutCuda(unittest.TestCase):
    def test_all_that_is_needed_is_defined(self):
        objects = [*objects_of(BUILD / "CMakeFiles", SOURCE), *objects_of(BUILD / "tests/CMakeFiles", SOURCE / "tests")]
        stubs = [item for item in objects if STUBS in item.parts]
        missing = [item for item in objects if is_missing(item)]
        self.assertTrue(stubs and missing, "expected objects of both kinds; build first")
        defined, needed = symbols([item for item in objects if not is_missing(item) and STUBS not in item.parts])
        absent = ((set(needed) - defined) & symbols(missing)[0]) - symbols(stubs)[0]
        lines = "\n".join(f"{name} of {Path(needed[name]).name}" for name in sorted(absent))
        text = subprocess.run(["c++filt"], input=lines, capture_output=True, text=True, check=True).stdout
        self.assertEqual(absent, set(), f"define in a no_cuda.cpp:\n{text}")


if __name__ == "__main__":
    unittest.main()
