"""Loads with transformers every model under FOLDER/exports, which we exported unchanged from those of the same names in
FOLDER that transformers_oracle.py wrote: the outputs must be the same bits.

    transformers_reload.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.utils import logging
from transformers_oracle import TASKS, compute_in_float64, load


def check(folder):
    task = folder.name.split(".")[1]
    expected = load_file(folder.parent.parent / folder.name / "expected.safetensors")
    with torch.no_grad():
        output, _ = TASKS[task].compute(load(folder, task, "auto"), expected)
    assert output.dtype == expected["output"].dtype and torch.equal(output, expected["output"]), folder.name
    print("same", folder.name)


def main():
    root = Path(sys.argv[1])
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    exports = sorted((root / "exports").iterdir())
    wide = [folder for folder in exports if folder.name.endswith("float64")]
    for folder in exports:
        if folder not in wide:
            check(folder)
    compute_in_float64({json.loads((folder / "config.json").read_text())["model_type"] for folder in wide})
    for folder in wide:
        check(folder)


if __name__ == "__main__":
    main()
