"""Tiny Qwen3 models in transformers, for the tests of the Hugging Face mapping.

save ROOT    writes ROOT/<case>/ as transformers saves it, and ROOT/<case>.ours.safetensors: the same weights with
             the names and layout of d9d, taken from the model in memory
check ROOT   loads each ROOT/<case>/ that d9d wrote; no key may be missing, unexpected or of another shape, and the
             model in memory must equal ROOT/<case>.ours.safetensors exactly
"""

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

SPLITS = {"regular": 50, "special": 14}
YARN = {
    "rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 512,
    "truncate": False,
}  # fmt: skip
SIZES = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
DENSE = transformers.Qwen3Config(**SIZES, intermediate_size=24, num_labels=3, rope_parameters=YARN)
TIED = transformers.Qwen3Config(**SIZES, intermediate_size=24, tie_word_embeddings=True, rope_theta=50000.0)
MOE = transformers.Qwen3MoeConfig(
    **SIZES, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, num_labels=3,
    rope_theta=50000.0,
)  # fmt: skip
CONFIG_KEYS = [
    *SIZES, "rope_parameters", "tie_word_embeddings", "hidden_act", "attention_bias", "use_sliding_window",
    "layer_types", "moe_intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers",
]  # fmt: skip
CASES = {  # name: class, config, how to save
    "dense_causal_lm": (transformers.Qwen3ForCausalLM, DENSE, {}),
    "dense_causal_lm_sharded": (transformers.Qwen3ForCausalLM, DENSE, {"max_shard_size": "5KB"}),
    "dense_causal_lm_tied": (transformers.Qwen3ForCausalLM, TIED, {}),
    "dense_classification": (transformers.Qwen3ForSequenceClassification, DENSE, {}),
    "dense_backbone": (transformers.Qwen3Model, DENSE, {}),
    "moe_causal_lm": (transformers.Qwen3MoeForCausalLM, MOE, {}),
    "moe_causal_lm_sharded": (transformers.Qwen3MoeForCausalLM, MOE, {"max_shard_size": "5KB"}),
    "moe_causal_lm_fused": (transformers.Qwen3MoeForCausalLM, MOE, {"fused": True}),
    "moe_classification": (transformers.Qwen3MoeForSequenceClassification, MOE, {}),
    "moe_backbone": (transformers.Qwen3MoeModel, MOE, {}),
}


def ours(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = {}
    for name, tensor in model.state_dict().items():
        name = name if name.startswith(("model.", "lm_head.", "score.")) else "model." + name
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            prefix = "head.lm_head." if name == "lm_head.weight" else "model.embed_tokens.token_embedding."
            for split, rows in zip(SPLITS, tensor.split(list(SPLITS.values())), strict=True):
                state[f"{prefix}{split}.weight"] = rows
        elif name == "score.weight":
            state["head.score.weight"] = tensor
        elif name.endswith(".experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            prefix = name.removesuffix("experts.gate_up_proj") + "grouped_experts."
            state[prefix + "gate_proj.weight"] = gate.transpose(1, 2)
            state[prefix + "up_proj.weight"] = up.transpose(1, 2)
        elif name.endswith(".experts.down_proj"):
            prefix = name.removesuffix("experts.down_proj") + "grouped_experts."
            state[prefix + "down_proj.weight"] = tensor.transpose(1, 2)
        else:
            state[name.replace(".mlp.gate.", ".mlp.router.gate.")] = tensor
    return {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}


def save(root: Path) -> None:
    for name, (model_class, config, options) in CASES.items():
        torch.manual_seed(len(name))
        model = model_class(config).to(torch.bfloat16)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        if options.get("fused"):
            model.config.architectures = [model_class.__name__]
            model.config.save_pretrained(root / name)
            save_file(model.state_dict(), root / name / "model.safetensors")
        else:
            model.save_pretrained(root / name, **options)
        save_file(ours(model), root / f"{name}.ours.safetensors")


def check(root: Path) -> None:
    for expected_file in root.glob("*.ours.safetensors"):
        folder = root / expected_file.name.removesuffix(".ours.safetensors")
        model_class, config, _ = CASES[folder.name]
        assert transformers.AutoConfig.from_pretrained(folder).architectures == [model_class.__name__]
        model, report = model_class.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), f"{folder.name}: {report}"
        assert model.dtype == torch.bfloat16, model.dtype
        for key in CONFIG_KEYS:
            found, expected = getattr(model.config, key, None), getattr(config, key, None)
            if key == "rope_parameters":  # an explicit default is still the default
                found = {name: value for name, value in found.items() if name in expected}
            assert found == expected, f"{folder.name}: {key} is {found}, not {expected}"
        if "Classification" in model_class.__name__:
            assert model.config.num_labels == config.num_labels
        found, expected = ours(model), load_file(expected_file)
        assert found.keys() == expected.keys(), f"{folder.name}: {found.keys() ^ expected.keys()}"
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and found[name].equal(tensor), f"{folder.name}: {name}"
        print("same", folder.name)


{"save": save, "check": check}[sys.argv[1]](Path(sys.argv[2]))
