"""From the start of a process to the end of its first training step, by phases: each run is a fresh process.

usage: start_up.py [--model qwen3-1.7b|qwen3-moe-small|...] [--runs N] [--optimizer ...] [--programs FOLDER]

The first run reads what the machine has not read yet and stands in a column of its own; the others give medians. Prints
Markdown. Phases, each from the end of the one before:

  main             the program is loaded, its shared libraries too
  device           configuration read, the CUDA half of LibTorch loaded, context made
  data             the first sequences can be read
  weights          the model is built and its weights are drawn: the host has given the work to the device
  optimizer        and the tracker
  backward queued  forward and backward of the first step are given to the device
  first step       all that is done, the optimiser too, and its loss is read
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from models import MODELS, OPTIMIZERS, REPOSITORY, configuration


def phases_of(program, path, report):
    """Seconds of each phase of one process, in order, and until its end."""
    started = time.monotonic()
    subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    ended = time.monotonic()
    phases, before = {}, started
    for name, moment in json.loads(report.read_text())["phases"]:
        phases[name] = moment - before
        before = moment
    return phases, before - started, ended - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-1.7b")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, help="fewer than the model has, to try the script")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    model = MODELS[options.model]
    if options.layers:
        model = model._replace(layers=options.layers, sequence=128)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = configuration(model, folder, steps=1, warm_up=1, optimizer=options.optimizer, device=options.device)
        path = folder / "config.json"
        path.write_text(json.dumps(config))
        runs = [phases_of(options.programs / model.program, path, Path(config["report"])) for _ in range(options.runs)]
    print(f"{options.model}, {model.sequence} x {model.microbatch}, {options.optimizer}; {options.runs} processes\n")
    print("| phase | first run ms | median of the others | least | most |\n|---|---|---|---|---|")
    rows = {name: [phases[name] for phases, _, _ in runs] for name in runs[0][0]}
    rows["**sum: start to the end of the first step**"] = [total for _, total, _ in runs]
    rows["end of the process"] = [rest for _, _, rest in runs]
    for name, seconds in rows.items():
        first, *others = (1e3 * value for value in seconds)
        others = others or [first]
        print(f"| {name} | {first:.0f} | {statistics.median(others):.0f} | {min(others):.0f} | {max(others):.0f} |")


main()
