"""Writes tiny random Qwen3 models with transformers, and what they compute.

    qwen3_oracle.py OUTPUT_FOLDER

For each family (dense, moe), dtype (float64, float32, bfloat16) and variant, one folder `<family>-<variant>-<dtype>` with a
Hugging Face model, and `expected.safetensors` in it: input_ids, labels (already shifted, -100 = ignored), logits, loss,
grad.<name> for every parameter; not in bfloat16, loss.<step> of four AdamW steps and param.<name> after them.

In bfloat16 also routing.<layer> [tokens, k], the experts that each token chose, and `exact.safetensors`: logits, loss and
grad.<name> of the same weights in float64 with that routing.
"""

import sys
import types
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

IGNORED = -100
SIZES = dict(
    hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=67,
    max_position_embeddings=64, rms_norm_eps=1e-6, attn_implementation="eager", experts_implementation="eager",
    initializer_range=0.2,
)


def build(family, variant):
    sizes = dict(SIZES, tie_word_embeddings=variant == "tied")
    if variant == "yarn":
        sizes["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
        }
    if family == "dense":
        return Qwen3ForCausalLM(Qwen3Config(intermediate_size=48, **sizes))
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            moe_intermediate_size=24, intermediate_size=48, num_experts=6, num_experts_per_tok=2,
            norm_topk_prob=variant != "unnormalized", decoder_sparse_step=1, mlp_only_layers=[], **sizes,
        )
    )


class Float64Torch:
    """`torch`, with float64 where a function asks for float32."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def compute_in_float64():
    """transformers computes norms, softmax and routing in float32 whatever the model's dtype. For comparisons at 1e-9 these
    functions run in float64; the rotary tables stay float32, as ours."""

    def widened(function):
        scope = dict(function.__globals__, torch=Float64Torch())
        return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)

    for module, prefix in ((modeling_qwen3, "Qwen3"), (modeling_qwen3_moe, "Qwen3Moe")):
        norm = getattr(module, prefix + "RMSNorm")
        norm.forward = widened(norm.forward)
        module.eager_attention_forward = widened(module.eager_attention_forward)
    router = modeling_qwen3_moe.Qwen3MoeTopKRouter
    router.forward = widened(router.forward)


def per_expert_names(name, tensor):
    """transformers 5 holds experts stacked; checkpoints name them one by one."""
    if ".mlp.experts.gate_up_proj" in name:
        for expert, rows in enumerate(tensor):
            gate, up = rows.chunk(2)
            yield name.replace("gate_up_proj", f"{expert}.gate_proj.weight"), gate
            yield name.replace("gate_up_proj", f"{expert}.up_proj.weight"), up
    elif ".mlp.experts.down_proj" in name:
        for expert, rows in enumerate(tensor):
            yield name.replace("down_proj", f"{expert}.down_proj.weight"), rows
    else:
        yield name, tensor


def loss_of(model, ids, labels):
    logits = model(ids).logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # as transformers does before its loss
    loss = torch.nn.functional.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    return logits, loss


def forward_backward(model, ids, labels):
    logits, loss = loss_of(model, ids, labels)
    loss.backward()
    results = {"logits": logits.detach(), "loss": loss.detach()}
    for name, parameter in model.named_parameters():
        for split_name, grad in per_expert_names(name, parameter.grad):
            results["grad." + split_name] = grad.clone().contiguous()
    return results


def routers_of(model):
    return [module for module in model.modules() if isinstance(module, modeling_qwen3_moe.Qwen3MoeTopKRouter)]


def record_routing(model):
    """A list that gets the experts of each layer as the layers run."""
    chosen = []
    for router in routers_of(model):
        router.register_forward_hook(lambda module, inputs, output: chosen.append(output[2]))
    return chosen


def replay_routing(model, routing):
    """Each layer uses the experts in `routing`, with the probabilities that its own logits give them."""

    def replay(indices):
        def hook(module, inputs, output):
            probs = output[0].softmax(-1).gather(-1, indices)
            if module.norm_topk_prob:
                probs = probs / probs.sum(-1, keepdim=True)
            return output[0], probs, indices

        return hook

    for router, indices in zip(routers_of(model), routing, strict=True):
        router.register_forward_hook(replay(indices))


def write_case(folder, family, variant, dtype):
    torch.manual_seed(7)
    model = build(family, variant).to(dtype)
    for name, parameter in model.named_parameters():  # norms away from one, so that their gradients matter
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.save_pretrained(folder)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 11))
    labels = torch.randint(0, SIZES["vocab_size"], (2, 11))
    labels[0, :3] = IGNORED
    routing = record_routing(model) if dtype == torch.bfloat16 else []
    expected = {"input_ids": ids, "labels": labels} | forward_backward(model, ids, labels)
    expected |= {f"routing.{layer}": indices for layer, indices in enumerate(routing)}
    if dtype != torch.bfloat16:
        expected |= train(model, ids, labels)
    save_file(expected, folder / "expected.safetensors")


def train(model, ids, labels):
    results = {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(4):
        optimizer.zero_grad()
        _, loss = loss_of(model, ids, labels)
        loss.backward()
        optimizer.step()
        results[f"loss.{step}"] = loss.detach()
    for name, parameter in model.named_parameters():
        for split_name, value in per_expert_names(name, parameter.detach()):
            results["param." + split_name] = value.clone().contiguous()
    return results


def write_exact(folder):
    """What the bfloat16 case of `folder` is without rounding."""
    expected = load_file(folder / "expected.safetensors")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    replay_routing(model, [expected[f"routing.{layer}"] for layer in range(len(routers_of(model)))])
    save_file(forward_backward(model, expected["input_ids"], expected["labels"]), folder / "exact.safetensors")


def main():
    output = Path(sys.argv[1])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        if dtype == torch.float64:
            compute_in_float64()
        for family, variants in (("dense", ["plain", "tied", "yarn"]), ("moe", ["plain", "unnormalized"])):
            for variant in variants:
                write_case(output / f"{family}-{variant}-{name}", family, variant, dtype)
                if dtype == torch.float64:
                    write_exact(output / f"{family}-{variant}-bfloat16")


if __name__ == "__main__":
    main()
