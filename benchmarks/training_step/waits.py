"""Where the host waits for the device in training steps, from a trace of one rank.

usage: waits.py TRACE.json [--first REGEX] [--last REGEX]      TRACE: of training_step/layouts.py --trace

A step goes from the launch of the first kernel of its first forward to that of its first optimiser kernel, on the host's
clock; the regular expressions name them. Prints Markdown; the exit code is 1 when the host waited in a step. Copies to the
host that it does not wait for, such as that of the step's loss, are counted. Idle: of the whole trace, no kernel and no
copy runs.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "communication"))
from exposed import exposure_of  # noqa: E402: found by the line above

FIRST = r"gather|[iI]ndex_?[sS]elect|embedding"
LAST = r"adamw|[aA]dam"
# cudaFree waits for the device, and so does a copy that is not asynchronous or whose target can be paged out.
WAITS = re.compile(r"^cu\w*(Stream|Device|Event|Ctx|Context)Synchronize|^cuda(Free|FreeHost)$|^cu(da)?Memcpy(?!.*Async)")


class Step(NamedTuple):
    waits: Counter  # calls of the host, by name
    wait_ms: float
    copies_to_host: int


def steps_of(events, first=FIRST, last=LAST):
    """Complete steps of a trace, in order."""
    on_device = {event["args"]["correlation"]: event for event in events
                 if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")}
    calls = sorted((event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")),
                   key=lambda event: event["ts"])
    steps, running = [], None
    for call in calls:
        work = on_device.get(call["args"].get("correlation"))
        kernel = work["name"] if work and work["cat"] == "kernel" else ""
        if running is None:
            if kernel and re.search(first, kernel):
                running = Step(Counter(), 0.0, 0)
            continue
        if kernel and re.search(last, kernel):
            steps.append(running)
            running = None
            continue
        is_copy = bool(work) and "DtoH" in work["name"]
        if is_copy:
            running = running._replace(copies_to_host=running.copies_to_host + 1)
        if WAITS.search(call["name"]) or (is_copy and "Pageable" in work["name"]):
            running.waits[call["name"]] += 1
            running = running._replace(wait_ms=running.wait_ms + call["dur"] / 1e3)
    return steps


def bubble_fraction(events):
    exposure = exposure_of(events)
    return exposure.idle / exposure.span


def read(path):
    return json.loads(Path(path).read_text())["traceEvents"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--first", default=FIRST, help="kernel that begins a step's forward")
    parser.add_argument("--last", default=LAST, help="kernel of the optimiser")
    options = parser.parse_args()
    events = read(options.trace)
    steps = steps_of(events, options.first, options.last)
    if not steps:
        sys.exit(f"waits.py: expected a kernel like {options.first} and then one like {options.last}, got no step")
    print("| step | host waits | of it ms | copies to the host | by |\n|---|---|---|---|---|")
    for index, step in enumerate(steps):
        names = ", ".join(f"{name} {count}" for name, count in step.waits.items())
        print(f"| {index} | {step.waits.total()} | {step.wait_ms:.2f} | {step.copies_to_host} | {names} |")
    print(f"\nIdle: {100 * bubble_fraction(events):.2f} % of the trace")
    sys.exit(any(step.waits.total() for step in steps))


if __name__ == "__main__":
    main()
