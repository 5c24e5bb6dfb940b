"""A folder that is like a published one without its weights: the names, dtypes, shapes, order and shards of Qwen3's.

    .venv/bin/python benchmarks/model_state/stand_in.py 30B-A3B FOLDER [--layers N] [--vocabulary ROWS] [--experts N]
                                                                      [--shard-bytes N]

Files are sparse: each tensor has some random numbers at its begin, in its middle and at its end, and is a hole elsewhere,
which takes no place on the disk and reads as zeros. Sizes are those of config.json on the hub.
"""

import argparse
import hashlib
import json
from math import prod
from pathlib import Path

SHARD_BYTES = 4_000_000_000  # of the published folders
PATTERN_BYTES = 64
COMMON = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
          "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "attention_bias": False,
          "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "rope_scaling": None,
          "sliding_window": None, "use_sliding_window": False, "torch_dtype": "bfloat16", "use_cache": True,
          "bos_token_id": 151643, "eos_token_id": 151645}  # fmt: skip
DENSE = {**COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MOE = {**COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
       "mlp_only_layers": [], "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8,
       "num_key_value_heads": 4, "output_router_logits": False, "router_aux_loss_coef": 0.001}  # fmt: skip


def dense(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> dict:
    return {**DENSE, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "tie_word_embeddings": tied}  # fmt: skip


def moe(hidden: int, dense_intermediate: int, intermediate: int, layers: int, heads: int) -> dict:
    return {**MOE, "hidden_size": hidden, "intermediate_size": dense_intermediate, "moe_intermediate_size": intermediate,
            "num_hidden_layers": layers, "num_attention_heads": heads, "tie_word_embeddings": False}  # fmt: skip


CONFIGS = {
    "0.6B": dense(1024, 3072, 28, 16, tied=True), "1.7B": dense(2048, 6144, 28, 16, tied=True),
    "4B": dense(2560, 9728, 36, 32, tied=True), "8B": dense(4096, 12288, 36, 32, tied=False),
    "14B": dense(5120, 17408, 40, 40, tied=False), "32B": dense(5120, 25600, 64, 64, tied=False),
    "30B-A3B": moe(2048, 6144, 768, 48, 32), "235B-A22B": moe(4096, 12288, 1536, 94, 64),
}  # fmt: skip
HAS_TIED_HEAD = ("0.6B", "1.7B")  # their files have the tied matrix twice


def shapes(config: dict, has_head: bool) -> dict[str, tuple[int, ...]]:
    """In the order of the published files."""
    hidden, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    all_shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}

    def add_mlp(prefix: str, intermediate: int) -> None:
        for name in ("gate_proj", "up_proj"):
            all_shapes[f"{prefix}{name}.weight"] = (intermediate, hidden)
        all_shapes[f"{prefix}down_proj.weight"] = (hidden, intermediate)

    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            all_shapes[f"{prefix}self_attn.{name}.weight"] = (rows, hidden)
        all_shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, queries)
        for name in ("q_norm", "k_norm"):
            all_shapes[f"{prefix}self_attn.{name}.weight"] = (size,)
        if "num_experts" in config:
            all_shapes[f"{prefix}mlp.gate.weight"] = (config["num_experts"], hidden)
            for expert in range(config["num_experts"]):
                add_mlp(f"{prefix}mlp.experts.{expert}.", config["moe_intermediate_size"])
        else:
            add_mlp(f"{prefix}mlp.", config["intermediate_size"])
        for name in ("input_layernorm", "post_attention_layernorm"):
            all_shapes[f"{prefix}{name}.weight"] = (hidden,)
    all_shapes["model.norm.weight"] = (hidden,)
    if has_head:
        all_shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return all_shapes


def in_shards(all_shapes: dict[str, tuple[int, ...]], shard_bytes: int) -> list[list[str]]:
    """As transformers fills them: a shard is full where the next tensor would take it beyond `shard_bytes`."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, shape in all_shapes.items():
        size = 2 * prod(shape)
        if shards[-1] and used + size > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def pattern(name: str, place: str) -> bytes:
    """Bfloat16 numbers in [0, 2)."""
    words = hashlib.shake_256(f"{name} {place}".encode()).digest(PATTERN_BYTES)
    return bytes(byte & 0x3F if i % 2 else byte for i, byte in enumerate(words))


def write_shard(path: Path, names: list[str], all_shapes: dict[str, tuple[int, ...]], is_tied: bool) -> None:
    header: dict = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        size = 2 * prod(all_shapes[name])
        header[name] = {"dtype": "BF16", "shape": list(all_shapes[name]), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        for name in names:
            first, last = (8 + len(text) + offset for offset in header[name]["data_offsets"])
            source = "model.embed_tokens.weight" if is_tied and name == "lm_head.weight" else name
            size = min(PATTERN_BYTES, last - first)
            for place, offset in (("begin", first), ("middle", (first + last) // 4 * 2), ("end", last - size)):
                file.seek(offset)
                file.write(pattern(source, place)[: min(PATTERN_BYTES, last - offset)])


def write(model: str, folder: Path, shard_bytes: int = SHARD_BYTES, **changes: int) -> None:
    """changes: of config.json."""
    config = {**CONFIGS[model], **changes}
    all_shapes = shapes(config, has_head=not config["tie_word_embeddings"] or model in HAS_TIED_HEAD)
    shards = in_shards(all_shapes, shard_bytes)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    files = {}
    for index, names in enumerate(shards):
        single = len(shards) == 1
        file = "model.safetensors" if single else f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / file, names, all_shapes, is_tied=config["tie_word_embeddings"])
        files.update(dict.fromkeys(names, file))
    if len(shards) > 1:
        total = sum(2 * prod(shape) for shape in all_shapes.values())
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, dest="num_hidden_layers")
    parser.add_argument("--vocabulary", type=int, dest="vocab_size")
    parser.add_argument("--experts", type=int, dest="num_experts")
    parser.add_argument("--shard-bytes", type=int, default=SHARD_BYTES)
    options = vars(parser.parse_args())
    model, folder, shard_bytes = (options.pop(name) for name in ("model", "folder", "shard_bytes"))
    write(model, folder, shard_bytes, **{name: value for name, value in options.items() if value is not None})


if __name__ == "__main__":
    main()
