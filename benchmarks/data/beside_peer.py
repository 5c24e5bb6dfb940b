"""Tokens a second of processor time beside torch.utils.data over datasets, one process each, on the same documents.

    .venv/bin/python benchmarks/data/beside_peer.py [--rounds N] [--seconds N] [--program FILE]

They take turns; read the ratio. The peer's microbatches are padded documents, as those of our view `documents`.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import datasets
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]
MICROBATCH = 8


def collate(rows):
    rows = [row["ids"] for row in rows]
    return (pad_sequence([row[:-1] for row in rows], batch_first=True),
            pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=-100))  # fmt: skip


def peer_rate(dataset, seconds):
    num_tokens, start = 0, time.process_time()
    for inputs, _ in DataLoader(dataset, batch_size=MICROBATCH, shuffle=True, collate_fn=collate):
        num_tokens += inputs.numel()
        if time.process_time() - start > seconds:
            break
    return num_tokens / (time.process_time() - start)


def our_rates(program, seconds):
    done = subprocess.run([program, "--benchmark_format=json", f"--benchmark_min_time={seconds}"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return {each["name"].removeprefix("read/"): each["tokens/s"] for each in json.loads(done.stdout)["benchmarks"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--program", default=ROOT / "build/release/bin/data_benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    our_rates(arguments.program, 0.01)  # writes the documents
    with open(Path(tempfile.gettempdir()) / "d9d_data_benchmark.jsonl", encoding="utf-8") as file:
        documents = [[*json.loads(line)["text"].encode(), 126] for line in file]
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        datasets.Dataset.from_dict({"ids": documents}).save_to_disk(folder)
        dataset = datasets.Dataset.load_from_disk(folder).with_format("torch")
        for _ in range(arguments.rounds):
            round_rates = {"peer": peer_rate(dataset, arguments.seconds)} | our_rates(arguments.program, arguments.seconds)
            for name, rate in round_rates.items():
                rates.setdefault(name, []).append(rate)
    print("| what | tokens/s, median | smallest to largest | of the peer, median | smallest to largest |\n|---|---|---|---|---|")
    for name, values in rates.items():
        ratios = [value / peer for value, peer in zip(values, rates["peer"], strict=True)]
        print(f"| {name} | {statistics.median(values) / 1e6:.1f}M | {min(values) / 1e6:.1f}M to {max(values) / 1e6:.1f}M | "
              f"{statistics.median(ratios):.1f} | {min(ratios):.1f} to {max(ratios):.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
