"""Reloads every model under FOLDER/exports with transformers and compares its logits with those of the model that
qwen3_oracle.py wrote: they must be the same bits.

    qwen3_reload.py FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def main():
    root = Path(sys.argv[1])
    exports = sorted((root / "exports").iterdir())
    assert len(exports) >= 10, exports
    for folder in exports:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", attn_implementation="eager", experts_implementation="eager", output_loading_info=True
        )
        assert not report["missing_keys"] and not report["unexpected_keys"], (folder.name, report)
        with safe_open(root / folder.name / "expected.safetensors", "pt") as expected:
            logits = model(expected.get_tensor("input_ids")).logits
            assert torch.equal(logits, expected.get_tensor("logits")), folder.name
    print("ok", len(exports))


if __name__ == "__main__":
    main()
