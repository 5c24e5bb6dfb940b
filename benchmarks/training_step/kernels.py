"""Device time of a training step by kernel, from traces of one rank; of two traces, the difference.

usage: kernels.py TRACE.json [TRACE.json] [--steps N] [--least MS]      TRACE: of training_step/layouts.py --trace

Kernels, copies and fills are added up by name without template arguments and parameters. Rows come in order of the
difference, or of the time. Prints Markdown.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path


def short(name):
    """cutlass::gemm<A, B>(C) -> cutlass::gemm; the functor of ATen's elementwise kernels stays."""
    functor = re.search(r"(\w+(?:_kernel_cuda|Functor|_kernel_impl|_cuda_kernel))\b", name) if "elementwise" in name else None
    plain, depth = "", 0
    for char in re.sub(r"\(anonymous namespace\)::|^void ", "", name):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            break
        plain += char if depth == 0 and char != ">" else ""
    return f"{plain} {functor[1]}" if functor else plain


def milliseconds(path):
    total, calls = Counter(), Counter()
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            total[short(event["name"])] += event["dur"] / 1e3
            calls[short(event["name"])] += 1
    return total, calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=3, help="that each trace covers")
    parser.add_argument("--least", type=float, default=0.1, help="milliseconds a step; less is added up in one row")
    options = parser.parse_args()
    tables = [milliseconds(path) for path in options.traces[:2]]
    of_step = [{name: time / options.steps for name, time in total.items()} for total, _ in tables]
    first, last = of_step[0], of_step[-1]
    names = sorted({*first, *last}, key=lambda name: -abs(last.get(name, 0) - first.get(name, 0) if len(tables) > 1 else first[name]))
    print(f"| kernel | calls a step | {' | '.join(str(path) for path in options.traces[:2])} | difference ms |")
    print("|---|---|" + "---|" * (len(tables) + 1))

    def row(name, calls, times):
        difference = f"{times[-1] - times[0]:+.2f}" if len(times) > 1 else ""
        print(f"| {name} | {calls} | {' | '.join(f'{time:.2f}' for time in times)} | {difference} |")

    rest = [0.0] * len(tables)
    for name in names:
        times = [table.get(name, 0.0) for table in of_step]
        shown = abs(times[-1] - times[0]) if len(tables) > 1 else times[0]
        if shown >= options.least:
            row(f"`{name}`", " and ".join(str(calls[name] // options.steps) for _, calls in tables), times)
        else:
            rest = [a + b for a, b in zip(rest, times)]
    row("others", "", rest)
    row("all", "", [sum(table.values()) for table in of_step])


main()
