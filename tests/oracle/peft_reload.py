"""Loads exports of d9d with transformers and Hugging Face peft, and compares their outputs with those of d9d.

    peft_reload.py FOLDER TOLERANCE CASE...        FOLDER as of peft_oracle.py

CASE/ours.safetensors has `output`, of the model with adapters. CASE/ours/merged is the whole model, CASE/ours/adapters are the
adapters alone. Prints `same CASE` for each.
"""

import json
import sys
import warnings
from pathlib import Path

import peft
import torch
import transformers_oracle as oracle
from safetensors.torch import load_file


def assert_close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def load_adapters(folder, adapters):
    """PeftModel.from_pretrained(), which must use every tensor and lack none."""
    base = oracle.load(folder, "causal_lm", torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing adapter keys.*")
        model = peft.PeftModel.from_pretrained(base, adapters)
    written = load_file(adapters / "adapter_model.safetensors")
    report = peft.set_peft_model_state_dict(model, written)  # what from_pretrained() does, with its report
    assert not report.unexpected_keys, report.unexpected_keys
    values = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    assert sum(parameter.count_nonzero() for parameter in values) == sum(
        tensor.count_nonzero() for name, tensor in written.items() if "lora_" in name)
    return model


def check(folder, tolerance):
    inputs = load_file(folder / "expected.safetensors")
    expected = load_file(folder / "ours.safetensors")["output"]
    merged = oracle.load(folder / "ours/merged", "causal_lm", torch.float64)
    with torch.no_grad():
        assert_close(oracle.CausalLM.compute(merged, inputs)[0], expected, tolerance)
        model = load_adapters(folder, folder / "ours/adapters")
        assert_close(oracle.CausalLM.compute(model, inputs)[0], expected, tolerance)
        base = oracle.load(folder, "causal_lm", torch.float64)
        difference = (oracle.CausalLM.compute(base, inputs)[0] - expected).abs().max()
    assert difference > 1e-3, "the adapters change nothing"


def main():
    root, tolerance = Path(sys.argv[1]), float(sys.argv[2])
    oracle.logging.disable_progress_bar()
    torch.set_num_threads(1)
    configs = json.loads((root / "architectures.json").read_text())
    oracle.compute_in_float64({config["model_type"] for config in configs.values()})
    for case in sys.argv[3:]:
        check(root / case, tolerance)
        print("same", case)


if __name__ == "__main__":
    main()
