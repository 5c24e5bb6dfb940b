"""Losses of a small model in bfloat16 and in mixed precision beside the same in float32, from the same seed and data.

usage: loss_curves.py [--model dense|moe] [--steps N] [--device cuda|cpu] [--plot PICTURE.svg] [--programs FOLDER]

bfloat16: parameters, activations and moments, with stochastic rounding (stochastic_adamw); float32: everything, AdamW;
mixed: float32 parameters (trainer.model_stage_factory.master_dtype), bfloat16 layers, AdamW. All train on the sources of Python's standard library. The gap is |loss - loss in float32| / loss in float32, of means
over 20 steps; prints its largest value, and that of the last 20 steps. Exit code 1 when the gap exceeds "bf16 loss curve"
(or "bf16 loss curve of experts") of tests/support/tolerances.h, or a loss or gradient norm is not finite.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))
import chart  # noqa: E402: found by the line above

WINDOW = 20  # steps
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}
PRECISIONS = {  # dtype of layers, of parameters, optimiser
    "float32": ("float32", "float32", {"name": "adamw", **ADAMW}),
    "bfloat16": ("bfloat16", "bfloat16", {"name": "stochastic_adamw", "state_dtype": "bfloat16", **ADAMW}),
    "mixed": ("bfloat16", "float32", {"name": "adamw", **ADAMW}),
}
SIZES = {"cuda": {"hidden": 512, "layers": 4, "sequence": 512, "batch": 16, "head_dim": 128},
         "cpu": {"hidden": 128, "layers": 2, "sequence": 128, "batch": 8, "head_dim": 32}}


def tolerance(name):
    """Of the one table of tolerances."""
    text = (REPOSITORY / "tests/support/tolerances.h").read_text()
    return float(re.search(rf'Tolerance{{"{re.escape(name)}",\s*([0-9.e+-]+),', text)[1])


BANDS = {"dense": "bf16 loss curve", "moe": "bf16 loss curve of experts"}


def configuration(model, precision, folder, device, steps):
    config = json.loads((REPOSITORY / f"examples/qwen3_{model}/pretrain/pretrain.json").read_text())
    size = SIZES[device]
    layer = config["model_provider"]["model"]["layer"]
    layer.update(hidden_size=size["hidden"], intermediate_size=2 * size["hidden"] // (4 if model == "moe" else 1),
                 num_attention_heads=4, num_key_value_heads=2, head_dim=size["head_dim"])
    config["model_provider"]["model"].update(num_hidden_layers=size["layers"], max_position_ids=1024)
    config["launch"] = {"device": device}
    config["data"].update(paths=[f"{sysconfig.get_path('stdlib')}/*.py"], sequence_length=size["sequence"],
                          global_batch_size=size["batch"], microbatch_size=size["batch"])
    dtype, master_dtype, config["optimizer"] = PRECISIONS[precision]
    config["model_provider"]["dtype"] = dtype
    config["trainer"]["model_stage_factory"] = {"master_dtype": master_dtype}
    config["trainer"]["schedule"]["total_steps"] = steps
    warm_up = config["lr_scheduler"]["scheduler"]["phases"][0]
    warm_up["steps"] = min(warm_up["steps"], steps // 2)
    config["trainer"]["logging"] = {"period_steps": 10000,
                                    "tracker": {"provider": "jsonl", "path": str(folder / f"{precision}.jsonl")}}
    config["export_to"] = str(folder / f"{precision}-export")
    return config


def train(model, precision, folder, *, device="cuda", steps=200, programs=REPOSITORY / "build/release/bin", overrides=()):
    """Lines of the log, one a step."""
    config = configuration(model, precision, folder, device, steps)
    path = folder / f"{precision}.json"
    path.write_text(json.dumps(config))
    result = subprocess.run([programs / f"qwen3_{model}_pretrain", path, *overrides], capture_output=True, text=True,
                            errors="replace", env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ})
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return [json.loads(line) for line in (folder / f"{precision}.jsonl").read_text().splitlines()]


def window_means(values):
    return [statistics.mean(values[i : i + WINDOW]) for i in range(0, len(values) - WINDOW + 1, WINDOW)]


def gaps(steps, reference):
    """Relative, of each window."""
    means = zip(window_means([step["loss"] for step in steps]), window_means([step["loss"] for step in reference]))
    return [abs(mine - theirs) / theirs for mine, theirs in means]


def is_finite(steps):
    return all(math.isfinite(step[key]) for step in steps for key in ("loss", "grad_norm"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["dense", "moe"], default="dense")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = {precision: train(options.model, precision, Path(name), device=options.device, steps=options.steps,
                                 programs=options.programs.resolve()) for precision in PRECISIONS}
    first, last = (", ".join(f"{run[index]['loss']:.4f}" for run in runs.values()) for index in (0, -1))
    finite = all(is_finite(run) for run in runs.values())
    band = tolerance(BANDS[options.model])
    print(f"{options.model} on {options.device}, {options.steps} steps; losses in {', '.join(runs)}: first {first}, "
          f"last {last}; losses and gradient norms finite: {'yes' if finite else 'NO'}")
    found = {precision: gaps(run, runs["float32"]) for precision, run in runs.items() if precision != "float32"}
    for precision, gap in found.items():
        print(f"{precision}: largest gap of {WINDOW} steps {100 * max(gap):.2f} %, last {100 * gap[-1]:.2f} %, band "
              f"{100 * band:.1f} %")
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        curves = {precision: [(step["step"], step["loss"]) for step in run] for precision, run in runs.items()}
        options.plot.write_text(chart.lines(curves, f"Qwen3 {options.model}: loss in three precisions", "step", "loss"))
    sys.exit(not finite or max(max(gap) for gap in found.values()) > band)


if __name__ == "__main__":
    main()
