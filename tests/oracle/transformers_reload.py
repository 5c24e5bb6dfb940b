"""Loads every model in FOLDER/exports with transformers. d9d exported them unchanged from the models of the same names
in FOLDER, which transformers_oracle.py wrote. Weights must be equal bit for bit, and outputs up to rounding, since the
last bits of transformers differ between processes.

    transformers_reload.py FOLDER FLOAT32 FLOAT64     tolerances of outputs, relative to the largest magnitude
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.utils import logging
from transformers_oracle import TASKS, compute_in_float64, load


def bits(model):
    return {name: tensor.contiguous().flatten().view(torch.uint8) for name, tensor in model.state_dict().items()}


def check(folder, rounding):
    task = folder.name.split(".")[1]
    original = folder.parent.parent / folder.name
    model, theirs = load(folder, task, "auto"), bits(load(original, task, "auto"))
    ours = bits(model)
    assert ours.keys() == theirs.keys() and theirs, folder.name
    for name, weight in theirs.items():
        assert torch.equal(ours[name], weight), f"{folder.name}: {name}"
    expected = load_file(original / "expected.safetensors")
    with torch.no_grad():
        output, _ = TASKS[task].compute(model, expected)
    error = (output - expected["output"]).abs().max() / expected["output"].abs().max()
    assert output.dtype == expected["output"].dtype and error <= rounding[output.dtype], f"{folder.name}: {error}"
    print("same", folder.name)


def main():
    root = Path(sys.argv[1])
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    rounding = {torch.float32: float(sys.argv[2]), torch.float64: float(sys.argv[3])}
    exports = sorted((root / "exports").iterdir())
    wide = [folder for folder in exports if folder.name.endswith("float64")]
    for folder in exports:
        if folder not in wide:
            check(folder, rounding)
    compute_in_float64({json.loads((folder / "config.json").read_text())["model_type"] for folder in wide})
    for folder in wide:
        check(folder, rounding)


if __name__ == "__main__":
    main()
