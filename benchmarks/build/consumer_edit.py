"""How long an edit of a training program compiles, with and without precompiled headers.

  .venv/bin/python benchmarks/build/consumer_edit.py [--source examples/custom_model/main.cpp] [--runs 3]
                                                     [--compiler g++] [--optimization -O2] [--profile]

User seconds of the compiler, the least of the runs: they depend on the machine's other work much less than wall time.
The memory that GCC allocated and the bytes of code do not depend on it at all. --profile prints GCC's phases.
"""

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EMPTY = "// only what is precompiled\n"


def include_flags():
    torch = next((REPOSITORY / ".venv/lib").glob("python3*/site-packages/torch/include"))
    return [f"-I{REPOSITORY}", "-isystem", torch, "-isystem", torch / "torch/csrc/api/include",
            "-DUSE_DISTRIBUTED", "-DUSE_RPC", "-DUSE_TENSORPIPE", "-std=c++20", "-w"]


def user_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, run.stderr


def measured(name, command, item, runs, profile):
    times = [user_seconds(command)[0] for _ in range(runs)]
    report = user_seconds([*command, "-ftime-report"])[1]
    memory = re.search(r"^ TOTAL .*?(\d+)M\s*$", report, re.MULTILINE)
    code = subprocess.run(["size", str(item)], capture_output=True, text=True, check=True).stdout.split("\n")[1].split()[0]
    print(f"| {name} | {min(times):.1f} | {max(times):.1f} | {memory[1] if memory else '?'} | {int(code):,} |", flush=True)
    if profile:
        print(report)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="examples/custom_model/main.cpp")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--optimization", default="-O2")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    source = REPOSITORY / options.source
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        headers = [line for line in source.read_text().splitlines() if line.startswith("#include")]
        (folder / "headers.h").write_text("\n".join(headers) + "\n")
        (folder / "empty.cpp").write_text(EMPTY)
        flags = [options.compiler, *include_flags(), options.optimization]
        item = folder / "out.o"
        compiled = ["-c", "-o", item]
        print("| what | user s, least | most | MB allocated | bytes of code |\n|---|---|---|---|---|", flush=True)
        common = (item, options.runs, options.profile)
        measured("the program", [*flags, source, *compiled], *common)
        user_seconds([*flags, "-x", "c++-header", folder / "headers.h", "-o", folder / "headers.h.gch"])
        precompiled = ["-include", folder / "headers.h"]
        measured("with its headers precompiled", [*flags, *precompiled, source, *compiled], *common)
        measured("precompiled headers alone", [*flags, *precompiled, folder / "empty.cpp", *compiled], *common)


if __name__ == "__main__":
    main()
