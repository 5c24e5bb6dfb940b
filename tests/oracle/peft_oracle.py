"""Writes what Hugging Face peft computes with LoRA on the models of transformers_oracle.py.

    peft_oracle.py FOLDER CASE...        a CASE is `<architecture>.causal_lm.float64`, a folder in FOLDER

CASE/peft.safetensors has the names and layouts of d9d (experts: A [E, in, r], B [E, r, out]; embeddings: A [ids, r]):

    lora.<name>      every A and B, drawn at random
    output, loss     with adapters
    grad.<name>      of every A and B
    merged           output of merge_and_unload(), where embedding and head are not tied
    with_norm        output with adapters of the linears whose name ends with q_proj and with other weights of the last norm

CASE/peft is what save_pretrained() writes of the first adapters, CASE/peft_with_norm of the second.

transformers holds the gate and up projections of experts in one parameter. peft gives it an adapter of rank 2 r for a pattern
that matches the two: r for each, where the rest of B is zero.
"""

import json
import sys
from pathlib import Path

import torch
import transformers_oracle as oracle
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

PREFIX = "base_model.model."


def expert_a(tensor, num_experts):
    return tensor.unflatten(0, (num_experts, -1)).transpose(1, 2)  # row e*r + k


def expert_b(tensor, num_experts):
    return tensor.unflatten(1, (-1, num_experts)).permute(2, 1, 0)  # column k*E + e


def blocks_of(b):
    """Of B [E, 2 r, 2 I] of gate and up: the part of each, [E, r, I]. The first r hidden features are of gate."""
    (gate, _), (_, up) = (half.chunk(2, 2) for half in b.chunk(2, 1))
    return gate, up


# Of a vocabulary in one part, "regular".
VOCABULARY = {
    "model.embed_tokens.lora_embedding_A": "model.embed_tokens.lora_A.regular.weight",
    "model.embed_tokens.lora_embedding_B": "model.embed_tokens.lora_B.weight",
    "lm_head.lora_A.weight": "head.lora_A.weight",
    "lm_head.lora_B.weight": "head.lora_B.regular.weight",
}


def in_our_names(tensors, num_experts):
    result = {}
    for name, tensor in tensors.items():
        name = name.removeprefix(PREFIX).replace(".default.", ".").removesuffix(".default")
        if name in VOCABULARY:
            result[VOCABULARY[name]] = tensor.T if "embedding_A" in name else tensor
            continue
        if ".experts." not in name:
            result[name.replace(".mlp.gate.", ".mlp.router.gate.")] = tensor
            continue
        is_a = "lora_A" in name
        tensor = (expert_a if is_a else expert_b)(tensor, num_experts)
        place = name.replace("mlp.experts.", "mlp.grouped_experts.")
        if ".base_layer." in name:  # the wrapper of the first of target_parameters
            gate, up = tensor.chunk(2, 2) if is_a else blocks_of(tensor)
            result[place.replace("base_layer", "gate_proj")] = gate
            result[place.replace("base_layer", "up_proj")] = up
        else:
            result[place.replace("lora_", "down_proj.lora_")] = tensor
    return result


def draw(name, parameter, num_experts):
    values = torch.randn(parameter.shape, dtype=torch.float64) * 0.2
    if ".experts.base_layer.lora_B" in name:
        of_experts = expert_b(values, num_experts)  # a view
        (_, upper), (lower, _) = (half.chunk(2, 2) for half in of_experts.chunk(2, 1))
        upper.zero_()
        lower.zero_()
    parameter.data = values


def with_norm(folder, inputs):
    base = oracle.load(folder, "causal_lm", torch.float64)
    model = get_peft_model(base, LoraConfig(r=2, lora_alpha=5.0, target_modules=["q_proj"], modules_to_save=["model.norm"]))
    torch.manual_seed(14)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, dtype=torch.float64) * 0.2
    model.save_pretrained(folder / "peft_with_norm")
    return oracle.CausalLM.compute(model, inputs)[0]


def write_case(folder, **options):
    inputs = load_file(folder / "expected.safetensors")
    base = oracle.load(folder, "causal_lm", torch.float64)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=6.0, target_modules=r".*_proj|.*mlp\.gate|.*embed_tokens|lm_head", **options))
    torch.manual_seed(13)
    adapters = {name: parameter for name, parameter in model.named_parameters() if "lora_" in name}
    assert all(parameter.requires_grad == (name in adapters) for name, parameter in model.named_parameters())
    num_experts = getattr(base.config, "num_experts", None)
    for name, parameter in adapters.items():
        draw(name, parameter, num_experts)
    model.save_pretrained(folder / "peft")
    output, loss = oracle.CausalLM.compute(model, inputs)
    loss.backward()
    values = in_our_names({name: parameter.detach() for name, parameter in adapters.items()}, num_experts)
    gradients = in_our_names({name: parameter.grad for name, parameter in adapters.items()}, num_experts)
    tensors = {"output": output, "loss": loss, "with_norm": with_norm(folder, inputs)}
    if not base.config.tie_word_embeddings:
        tensors["merged"], _ = oracle.CausalLM.compute(model.merge_and_unload(), inputs)
    tensors |= {f"lora.{name}": tensor for name, tensor in values.items()}
    tensors |= {f"grad.{name}": tensor for name, tensor in gradients.items()}
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, folder / "peft.safetensors")


def write_cases(write):
    """Calls write(folder, use_rslora=...) for each case of the command line."""
    root = Path(sys.argv[1])
    oracle.logging.disable_progress_bar()
    torch.set_num_threads(1)
    configs = json.loads((root / "architectures.json").read_text())
    oracle.compute_in_float64({config["model_type"] for config in configs.values()})
    for case in sys.argv[2:]:
        write(root / case, use_rslora="qwen2" in case)


if __name__ == "__main__":
    write_cases(write_case)
