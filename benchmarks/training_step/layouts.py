"""A training step of a dense 1.7B model in bfloat16 over the GPUs of this machine: one rank, sharded, replicated.

usage: layouts.py [--ranks N] [--steps N] [--microbatches N] [--programs FOLDER]

Each rank trains on microbatches of two sequences of 4096 random tokens, so a step of N ranks does N times the work of one:
with free communication it would take as long. The example program itself is what runs. Prints Markdown.
"""

import argparse
import array
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SEQUENCE = 4096
MICROBATCH = 2
VOCABULARY = 151936
WARM_UP = 3  # steps
MODEL = {
    "layer": {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8,
              "rms_norm_eps": 1e-6, "head_dim": 128},
    "num_hidden_layers": 28, "rope_base": 1000000, "max_position_ids": 40960, "split_vocab_size": {"all": VOCABULARY},
    "split_vocab_order": ["all"],
}


def steps_of(program, folder, options, num_ranks, *mesh):
    tokens = folder / "tokens.bin"
    if not tokens.exists():
        draw = random.Random(1)
        ids = array.array("I", (draw.randrange(VOCABULARY) for _ in range(SEQUENCE * 64 + 1)))
        tokens.write_bytes(ids.tobytes())
    config = json.loads((REPOSITORY / "examples/qwen3_dense/pretrain/pretrain.json").read_text())
    config["data"] = {"kind": "tokens", "path": str(tokens), "dtype": "uint32", "sequence_length": SEQUENCE, "shuffle": True,
                      "global_batch_size": MICROBATCH * options.microbatches * num_ranks, "microbatch_size": MICROBATCH,
                      "num_workers": 1}
    config["model_provider"].update(model=MODEL, dtype="bfloat16")
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    config["trainer"]["schedule"]["total_steps"] = options.steps
    config["trainer"]["logging"]["tracker"] = {"provider": "jsonl", "path": str(metrics)}
    config["lr_scheduler"]["scheduler"]["phases"] = [
        {"mode": "rest", "target_multiplier": 1.0, "curve": {"type": "linear"}}]
    config["export_to"] = str(folder / "export")
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    subprocess.run([program, path, *mesh], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    return [json.loads(line) for line in metrics.read_text().splitlines()][WARM_UP:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    layouts = [("one rank", 1, []), (f"sharded over {options.ranks}", options.ranks,
                                     [f"mesh.data_parallel_shard={options.ranks}"]),
               (f"replicated on {options.ranks}", options.ranks, [f"mesh.data_parallel_replicate={options.ranks}"])]
    print("| layout | step ms: median | least | most | tokens/s | over one rank |\n|---|---|---|---|---|---|")
    alone = None
    with tempfile.TemporaryDirectory() as folder:
        for name, num_ranks, mesh in layouts:
            steps = steps_of(options.programs / "qwen3_dense_pretrain", Path(folder), options, num_ranks, *mesh)
            seconds = [step["step_seconds"] for step in steps]
            median = statistics.median(seconds)
            alone = alone or median
            print(f"| {name} | {1e3 * median:.1f} | {1e3 * min(seconds):.1f} | {1e3 * max(seconds):.1f} | "
                  f"{steps[0]['num_tokens'] / median:,.0f} | {100 * (median / alone - 1):+.1f} % |", flush=True)


main()
