"""Tokens a second of torch.utils.data over datasets, one process, on the documents of data_benchmark (run that first).

    .venv/bin/python benchmarks/data/peer.py
"""
import json
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

MICROBATCH, SECONDS = 8, 10

torch.set_num_threads(1)
with open(Path(tempfile.gettempdir()) / "d9d_data_benchmark.jsonl", encoding="utf-8") as file:
    documents = [[*json.loads(line)["text"].encode(), 126] for line in file]
with tempfile.TemporaryDirectory() as folder:
    Dataset.from_dict({"ids": documents}).save_to_disk(folder)
    dataset = Dataset.load_from_disk(folder).with_format("torch")

    def collate(rows):
        rows = [row["ids"] for row in rows]
        return (pad_sequence([row[:-1] for row in rows], batch_first=True),
                pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=-100))

    loader = DataLoader(dataset, batch_size=MICROBATCH, shuffle=True, collate_fn=collate)
    num_tokens, start = 0, time.perf_counter()
    for inputs, _ in loader:
        num_tokens += inputs.numel()
        if time.perf_counter() - start > SECONDS:
            break
    print(f"documents, padded: {num_tokens / (time.perf_counter() - start):.3g} tokens/s")
