"""How much of a training step a GPU communicates without computing, from a trace of its kernels.

usage: exposed.py TRACE.json [--steps N]      N: steps that the trace covers; TRACE: of training_step/layouts.py --trace

The stream with most time in kernels other than NCCL's computes, and so does one with a third of that: composed computations of
a pipeline run on two. Communication is NCCL's kernels on any stream, and everything but copies to and from the host on the
others: copies from peers' memory, sums of gradients on their way. Exposed is the time in which it runs and no kernel computes.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Exposure(NamedTuple):
    """Milliseconds of all steps of a trace."""

    span: float  # first start to last end
    compute: float
    communication: float
    exposed: float  # communication without compute
    idle: float  # neither

    def share(self):
        return self.exposed / self.span

    def hidden(self):
        """Share of the communication that runs beside compute; 1 where there is none."""
        return 1 - self.exposed / self.communication if self.communication else 1.0


def union(intervals):
    """Disjoint intervals, in order, that cover the same time."""
    result = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def length(intervals):
    return sum(end - start for start, end in union(intervals))


def is_nccl(event):
    return event["cat"] == "kernel" and event["name"].startswith("nccl")


def exposure_of(events, only=""):
    """events: of Chrome's trace format, of one device. only: a regular expression; of NCCL's kernels those that match count."""
    events = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not events:
        raise ValueError("expected kernels in the trace, got none: was it taken on a GPU?")
    busy = defaultdict(float)
    for event in events:
        if event["cat"] == "kernel" and not is_nccl(event):
            busy[event["args"]["stream"]] += event["dur"]
    computing = {stream for stream, time in busy.items() if time >= max(busy.values()) / 3}
    compute, communication, rest = [], [], []
    for event in events:
        interval = (event["ts"], event["ts"] + event["dur"])
        is_host_copy = event["cat"] == "gpu_memcpy" and ("HtoD" in event["name"] or "DtoH" in event["name"])
        if is_nccl(event):
            (communication if re.search(only, event["name"]) else rest).append(interval)
        elif event["args"]["stream"] in computing:
            (compute if event["cat"] == "kernel" else rest).append(interval)
        else:
            (rest if is_host_copy else communication).append(interval)
    everything = compute + communication + rest
    span = max(end for _, end in everything) - min(start for start, _ in everything)
    microseconds = (span, length(compute), length(communication), length(compute + communication) - length(compute),
                    span - length(everything))
    return Exposure(*(time / 1e3 for time in microseconds))


def read(path, only=""):
    return exposure_of(json.loads(Path(path).read_text())["traceEvents"], only)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", metavar="REGEX", default="", help="of NCCL's kernels: ReduceScatter|AllReduce for gradients")
    options = parser.parse_args()
    exposure = read(options.trace, options.only)
    print("| ms a step: span | compute | communication | exposed | idle | exposed share | hidden |\n|---|---|---|---|---|---|---|")
    print("| " + " | ".join(f"{time / options.steps:.2f}" for time in exposure) +
          f" | {100 * exposure.share():.2f} % | {100 * exposure.hidden():.0f} % |")


if __name__ == "__main__":
    main()
