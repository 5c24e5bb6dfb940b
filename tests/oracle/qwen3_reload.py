"""Loads with transformers every model under FOLDER/exports and the one of the same name in FOLDER, which qwen3_oracle.py
wrote: their logits must be the same bits.

    qwen3_reload.py FOLDER
"""

import sys
from pathlib import Path

import torch
from qwen3_oracle import compute_in_float64
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def logits_of(folder, ids):
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], (folder, report)
    return model(ids).logits


def main():
    root = Path(sys.argv[1])
    exports = sorted((root / "exports").iterdir(), key=lambda folder: folder.name.endswith("float64"))
    assert len(exports) >= 10, exports
    for folder in exports:
        if folder.name.endswith("float64"):
            compute_in_float64()
        with safe_open(root / folder.name / "expected.safetensors", "pt") as expected:
            ids = expected.get_tensor("input_ids")
        assert torch.equal(logits_of(folder, ids), logits_of(root / folder.name, ids)), folder.name
    print("ok", len(exports))


if __name__ == "__main__":
    main()
