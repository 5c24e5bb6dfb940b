"""Computes blocks with PyTorch and transformers, in fp64, and writes their inputs and outputs.

    blocks_oracle.py OUTPUT_FOLDER

OUTPUT_FOLDER/cases.safetensors holds, for each case:
    <case>/in/<name>        inputs, representable in float32; grad_out is the gradient of the output
    <case>/weight/<name>    weights with the names and layout of d9d, representable in float32 too
    <case>/out              the output
    <case>/grad/<name>      gradients of weights, and of inputs that require them
OUTPUT_FOLDER/causal_lm is a Hugging Face model, whose greedy continuation of a prompt is a case.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import (GPTJConfig, GptOssConfig, LlamaConfig, Qwen2Config, Qwen3_5MoeTextConfig, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3NextConfig)
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP, Qwen3RotaryEmbedding
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock, load_balancing_loss_func
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRMSNorm

BATCH, SEQUENCE, HIDDEN, HEAD_DIM, POSITIONS = 2, 8, 24, 8, 32
EAGER = {"attn_implementation": "eager"}
results = {}


def keep_double():
    """transformers computes norms, softmaxes and routers in float32; here double tensors stay double."""
    to, softmax = torch.Tensor.to, F.softmax

    def wide_to(tensor, *args, **kwargs):
        narrows = args == (torch.float32,) or kwargs == {"dtype": torch.float32}
        return tensor if narrows and tensor.dtype == torch.float64 else to(tensor, *args, **kwargs)

    def wide_softmax(tensor, dim=None, dtype=None, **kwargs):
        return softmax(tensor, dim=dim, dtype=None if tensor.dtype == torch.float64 else dtype, **kwargs)

    torch.Tensor.to = wide_to
    torch.Tensor.float = lambda tensor: wide_to(tensor, torch.float32)
    F.softmax = wide_softmax


def draw(*shape, scale=1.0, mean=0.0):
    return (torch.randn(shape) * scale + mean).double()


def same_names(name, tensor):
    yield name, tensor


def add_case(name, module, forward, inputs, rename=same_names):
    """`inputs`: by name; gradients are computed for floating ones that require them."""
    for parameter in module.parameters():
        parameter.data = draw(*parameter.shape, scale=0.5, mean=0.7 if parameter.ndim == 1 else 0.0)
    module.double()
    out = forward(module, **inputs)
    grad_out = draw(*out.shape)
    out.backward(grad_out)
    tensors = {f"in/{key}": value for key, value in inputs.items()} | {"in/grad_out": grad_out, "out": out}
    tensors |= {f"grad/{key}": value.grad for key, value in inputs.items() if value.requires_grad}
    for key, parameter in module.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        tensors |= {f"weight/{ours}": value for ours, value in rename(key, parameter)}
        tensors |= {f"grad/{ours}": value for ours, value in rename(key, gradient)}
    for key, value in tensors.items():
        results[f"{name}/{key}"] = value.detach().clone().contiguous()


def leaf(*shape, scale=1.0):
    return draw(*shape, scale=scale).requires_grad_()


# Attention ------------------------------------------------------------------------------------------------------------
def positions():
    return torch.stack([torch.arange(SEQUENCE), torch.arange(SEQUENCE) + 11])


def tables(dim):
    config = Qwen3Config(head_dim=dim, max_position_embeddings=POSITIONS, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    return Qwen3RotaryEmbedding(config)(torch.empty(1, dtype=torch.float64), positions())


def additive(keep):
    return torch.zeros(keep.shape, dtype=torch.float64).masked_fill(~keep, -torch.inf)


def by_position(mask_function):
    keep = [[bool(mask_function(0, 0, torch.tensor(q), torch.tensor(k))) for k in range(SEQUENCE)] for q in range(SEQUENCE)]
    return torch.tensor(keep)[None, None]


CAUSAL = by_position(causal_mask_function)


def qwen3_attention(key_value_heads, **kwargs):
    return Qwen3Attention(Qwen3Config(hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=key_value_heads,
                                      head_dim=HEAD_DIM, rms_norm_eps=1e-5, **EAGER, **kwargs), 0)


def attend(mask, dim=HEAD_DIM):
    """Forward of an attention layer with an additive mask: [1 or B, 1 or heads, S, S]."""
    def forward(module, x, cos, sin, **_):
        return module(x, (cos[..., :dim], sin[..., :dim]), mask)[0]
    return forward


def attention_inputs(dim=HEAD_DIM, **more):
    cos, sin = tables(dim)
    return {"x": leaf(BATCH, SEQUENCE, HIDDEN), "cos": cos, "sin": sin} | more


def gated_names(name, tensor):
    """d9d's gate is a separate projection; Qwen3-Next has it in q_proj, after each head's query."""
    if name != "q_proj.weight":
        yield name, tensor
        return
    query, gate = tensor.view(-1, 2, HEAD_DIM, HIDDEN).unbind(1)
    yield "q_proj.weight", query.flatten(0, 1)
    yield "gate_proj.weight", gate.flatten(0, 1)


def renamed(**names):
    def rename(name, tensor):
        yield names.get(name.replace(".", "_"), name), tensor
    return rename


def attention_cases():
    for name, heads in (("mha", 4), ("gqa", 2), ("mqa", 1)):
        add_case(f"attention_{name}", qwen3_attention(heads), attend(additive(CAUSAL)), attention_inputs())
    add_case("attention_non_causal", qwen3_attention(2), attend(None), attention_inputs())

    keep = (torch.rand(BATCH, 1, SEQUENCE, SEQUENCE) < 0.6) | torch.eye(SEQUENCE, dtype=torch.bool)
    add_case("attention_boolean_mask", qwen3_attention(2), attend(additive(keep)), attention_inputs(mask=keep))
    add_case("attention_boolean_mask_causal", qwen3_attention(2), attend(additive(keep & CAUSAL)), attention_inputs(mask=keep))
    bias = draw(BATCH, 4, SEQUENCE, SEQUENCE)
    add_case("attention_additive_mask", qwen3_attention(2), attend(bias), attention_inputs(mask=bias))

    sizes = dict(hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIM, **EAGER)
    add_case("attention_qkv_bias", Qwen2Attention(Qwen2Config(**sizes), 0), attend(additive(CAUSAL)), attention_inputs())
    add_case("attention_bias", LlamaAttention(LlamaConfig(attention_bias=True, **sizes), 0), attend(additive(CAUSAL)),
             attention_inputs())

    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = Qwen3NextConfig(hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIM,
                             rms_norm_eps=1e-5, rope_parameters=rope, **EAGER)
    add_case("attention_gated", Qwen3NextAttention(config, 0), attend(additive(CAUSAL)), attention_inputs(HEAD_DIM // 2),
             gated_names)

    for name, mask_function in (("", causal_mask_function), ("_window", sliding_window_causal_mask_function(3))):
        config = GptOssConfig(hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIM,
                              attention_bias=False, **EAGER)
        add_case(f"attention_sinks{name}", GptOssAttention(config, 0),
                 attend(additive(by_position(mask_function)), dim=HEAD_DIM // 2), attention_inputs(),
                 renamed(sinks="kernel.sinks"))

    config = GPTJConfig(n_embd=HIDDEN, n_head=3, n_positions=POSITIONS, rotary_dim=4, attn_pdrop=0.0, resid_pdrop=0.0)
    module = GPTJAttention(config, 0)
    add_case("attention_interleaved", module,
             lambda module, x, positions: module(x, attention_mask=additive(CAUSAL), position_ids=positions)[0],
             {"x": leaf(BATCH, SEQUENCE, HIDDEN), "positions": positions()}, renamed(out_proj_weight="o_proj.weight"))
    cos, sin = tables(HEAD_DIM)
    results["rotary_half/cos"], results["rotary_half/sin"] = cos.clone(), sin.clone()
    results["rotary_half/positions"] = positions()


# Feed-forward and norms -----------------------------------------------------------------------------------------------
def run(module, x):
    return module(x)


def mlp_cases():
    add_case("swiglu", Qwen3MLP(Qwen3Config(hidden_size=HIDDEN, intermediate_size=20)), run, {"x": leaf(BATCH, SEQUENCE, HIDDEN)})
    add_case("swiglu_bias", LlamaMLP(LlamaConfig(hidden_size=HIDDEN, num_attention_heads=4, intermediate_size=20, mlp_bias=True)), run,
             {"x": leaf(BATCH, SEQUENCE, HIDDEN)})
    add_case("rms_norm", torch.nn.RMSNorm(HIDDEN, eps=1e-5), run, {"x": leaf(BATCH, SEQUENCE, HIDDEN)})
    add_case("rms_norm_zero_centered", Qwen3NextRMSNorm(HIDDEN, eps=1e-5), run, {"x": leaf(BATCH, SEQUENCE, HIDDEN)})


# Mixtures of experts --------------------------------------------------------------------------------------------------
def moe_names(name, tensor):
    """d9d: experts [E, in, out], gate and up separate."""
    if name == "gate.weight":
        yield "router.gate.weight", tensor
    elif name == "experts.gate_up_proj":
        for part, half in zip(("gate", "up"), tensor.chunk(2, dim=1)):
            yield f"grouped_experts.{part}_proj.weight", half.transpose(1, 2)
    elif name == "experts.down_proj":
        yield "grouped_experts.down_proj.weight", tensor.transpose(1, 2)
    elif name == "shared_expert_gate.weight":
        yield "shared_expert.gate.weight", tensor
    else:
        yield name.replace("shared_expert.", "shared_expert.expert."), tensor


def without_prefix(prefix):
    def rename(name, tensor):
        for ours, value in moe_names(name, tensor):
            if ours.startswith(prefix):
                yield ours.removeprefix(prefix), value
    return rename


def moe_cases():
    sizes = {"hidden_size": HIDDEN, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
             "experts_implementation": "eager"}
    x = lambda: {"x": leaf(BATCH, SEQUENCE, HIDDEN)}
    for name, renormalize in (("moe", True), ("moe_unnormalized", False)):
        add_case(name, Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(norm_topk_prob=renormalize, **sizes)), run, x(),
                 moe_names)
    few = dict(sizes, num_experts=64)  # of which 16 tokens cannot fill all
    add_case("moe_empty_experts", Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(norm_topk_prob=True, **few)), run, x(), moe_names)
    config = Qwen3_5MoeTextConfig(shared_expert_intermediate_size=10, **sizes)
    add_case("moe_shared_expert", Qwen3_5MoeSparseMoeBlock(config), run, x(), moe_names)

    def shared_expert(module, x):
        return torch.sigmoid(module.shared_expert_gate(x)) * module.shared_expert(x)
    add_case("shared_expert_gated", Qwen3_5MoeSparseMoeBlock(config), shared_expert, x(), without_prefix("shared_expert."))

    def auxiliary_loss(module, x):
        logits = module.gate(x)[0]
        return 0.1 * load_balancing_loss_func((logits,), 6, 2)
    add_case("auxiliary_loss", Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(norm_topk_prob=True, **sizes)), auxiliary_loss, x(), moe_names)

    # Of sequences of 5 and 3 positions: transformers divides counts by their sum in float32, which is exact for 8.
    def auxiliary_loss_with_padding(module, x):
        attention_mask = (torch.arange(SEQUENCE) < torch.tensor([[5], [3]])).long()
        return 0.1 * load_balancing_loss_func((module.gate(x)[0],), 6, 2, attention_mask)
    add_case("auxiliary_loss_with_padding", Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(norm_topk_prob=True, **sizes)),
             auxiliary_loss_with_padding, x(), moe_names)


# Whole models ---------------------------------------------------------------------------------------------------------
def save_model(folder, model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.8 if parameter.ndim == 1 else 0.0, 0.3)
    model.double().eval().save_pretrained(folder)


def model_cases(output):
    sizes = dict(hidden_size=HIDDEN, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=HEAD_DIM, vocab_size=40, max_position_embeddings=POSITIONS, pad_token_id=0, **EAGER)
    model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    save_model(output / "causal_lm", model)
    prompt = torch.randint(1, 40, (1, 5))
    generated = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    results["causal_lm/prompt"], results["causal_lm/generated"] = prompt[0], generated[0, 5:]


def main():
    output = Path(sys.argv[1])
    transformers.logging.set_verbosity_error()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    keep_double()
    attention_cases()
    mlp_cases()
    moe_cases()
    model_cases(output)
    save_file(results, output / "cases.safetensors")


if __name__ == "__main__":
    main()
