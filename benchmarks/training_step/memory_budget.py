"""The plans of activations that trainer.memory_budget chooses beside those by hand, on one GPU.

usage: memory_budget.py [--cases dense,long,moe] [--budget GIB] [--host GIB] [--steps N] [--warm-up N] [--programs FOLDER]

Case `dense`: the 1.7B, 4,096 x 2 tokens a microbatch; `long`: 8 layers of the 8B, 65,536 x 1; `moe`: qwen3-moe-small, 4,096 x 2. By hand: each way
to recompute, and with --host to offload, in all layers or in the first 3/4, 1/2 and 1/4 of them (model_provider.checkpointing). Without
--budget the budget lies half way between what the job takes if layers keep nothing but their inputs, and if they keep everything. A setting
fits if the tensors of its steps take no more than the budget. Goal: the chosen plans reach 0.97 of the tokens a second of the fastest setting
that fits, and fit. Prints Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from models import MODELS, REPOSITORY, configuration

CASES = {"dense": MODELS["qwen3-1.7b"],
         "long": MODELS["qwen3-8b"]._replace(layers=8, sequence=65536),
         "moe": MODELS["qwen3-moe-small"]}
RECOMPUTED = ("feed_forward", "all_but_attention", "all")
GIB = 2**30


def settings(model, offloads):
    """model_provider.checkpointing of all settings by hand."""
    yield False
    for recompute in RECOMPUTED:
        for offload in (False, True) if offloads and recompute != "feed_forward" else (False,):
            for quarters in (4, 3, 2, 1):
                yield {"recompute": recompute, "offload": offload, "layers": model.layers * quarters // 4}


class Runs:
    """Of one case, in a folder that holds its tokens."""

    def __init__(self, model, folder, options):
        self.model, self.folder, self.options = model, folder, options

    def run(self, checkpointing, budget=None):
        """Tokens a second, bytes at the peak, and what the job logged; None where memory did not suffice."""
        options = self.options
        config = configuration(self.model, self.folder, steps=options.steps, warm_up=options.warm_up, device=options.device)
        config["mesh"] = {}
        config["model_provider"]["checkpointing"] = checkpointing
        config["trainer"]["memory_budget"] = budget
        config["trainer"].setdefault("gradient_manager", {})["grad_dtype"] = "bfloat16"
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ}
        done = subprocess.run([options.programs / self.model.program, path], capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            if "memory" in done.stderr:
                return None
            sys.exit(done.stderr)
        report = json.loads(Path(config["report"]).read_text())
        seconds = statistics.median(report["step_ms"][options.warm_up - 1:]) / 1e3
        return self.model.sequence * self.model.microbatch / seconds, report["peak_allocated_bytes"], done.stderr


def compare(name, options):
    model = CASES[name]
    if options.layers:
        model = model._replace(layers=options.layers)
    if options.sequence:
        model = model._replace(sequence=options.sequence)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(model, Path(folder), options)
        kept, frugal = runs.run(False), runs.run(True)
        most = kept[1] if kept else 130 * GIB
        budget = options.budget * GIB if options.budget else (most + frugal[1]) / 2
        print(f"\n## {name}: {model.layers} layers, {model.sequence} x {model.microbatch}, budget {budget / GIB:.2f} GiB, "
              f"host {options.host} GiB\n\n| setting | tokens/s | GiB | fits |\n|---|---|---|---|", flush=True)
        best = 0
        for setting in settings(model, options.host > 0):
            done = kept if setting is False else runs.run(setting)
            fits = done is not None and done[1] <= budget
            best = max(best, done[0] if fits else 0)
            numbers = f"{done[0]:,.0f} | {done[1] / GIB:.2f}" if done else "out of memory |"
            print(f"| {json.dumps(setting)} | {numbers} | {'yes' if fits else 'no'} |", flush=True)
        chosen = runs.run(False, {"device": int(budget), "host": options.host * GIB})
        if chosen is None:
            print("| memory_budget | out of memory | | no |")
            return False
        fits = chosen[1] <= budget
        print(f"| memory_budget | {chosen[0]:,.0f} | {chosen[1] / GIB:.2f} | {'yes' if fits else 'no'} |\n\n"
              f"chosen over the best by hand that fits: {chosen[0] / best:.3f}\n\n```")
        lines = chosen[2].splitlines()
        begin = next((i for i, line in enumerate(lines) if "trainer.memory_budget" in line), len(lines))
        print("\n".join(lines[begin:begin + 12]) + "\n```", flush=True)
        return fits and chosen[0] >= 0.97 * best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--budget", type=float, help="GiB of the device; default: half way, see above")
    parser.add_argument("--host", type=int, default=0, help="GiB of page-locked memory")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--layers", type=int, help="fewer than the model has, to try the script")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence, other than the model's")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    reached = [compare(name, options) for name in options.cases.split(",")]
    sys.exit(0 if all(reached) else 1)


main()
