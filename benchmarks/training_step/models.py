"""The models of the training step's benchmarks, with random weights and tokens, and the configuration of a job."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy

REPOSITORY = Path(__file__).resolve().parents[2]


class Model(NamedTuple):
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    intermediate: int  # of an expert, where there are experts
    vocabulary: int
    rope_base: int
    sequence: int
    microbatch: int  # sequences
    gradients: str = "bfloat16"  # of shards and on the wire
    head_dim: int = 128
    experts: int = 0
    experts_top_k: int = 0

    @property
    def family(self):
        return "moe" if self.experts else "dense"

    @property
    def program(self):
        return f"training_step_{self.family}_benchmark"

    def config(self):
        layer = {"hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_attention_heads": self.heads,
                 "num_key_value_heads": self.key_value_heads, "rms_norm_eps": 1e-6, "head_dim": self.head_dim}
        if self.experts:
            layer |= {"num_experts": self.experts, "experts_top_k": self.experts_top_k,
                      "router_auxiliary_loss_coefficient": 0.0}
        return {"layer": layer, "num_hidden_layers": self.layers, "rope_base": self.rope_base, "max_position_ids": max(40960, self.sequence),
                "split_vocab_size": {"all": self.vocabulary}, "split_vocab_order": ["all"]}

    def flop_per_token(self, *, is_frozen=False):
        """6 N + 6 L n_q d S, with N the weights of matrix products that a token sees; 4 N if these have no gradients."""
        projections = 2 * self.hidden * self.head_dim * (self.heads + self.key_value_heads)
        feed_forward = 3 * self.hidden * self.intermediate * (self.experts_top_k or 1) + self.hidden * self.experts
        weights = self.layers * (projections + feed_forward) + self.hidden * self.vocabulary
        return (4 if is_frozen else 6) * weights + 6 * self.layers * self.heads * self.head_dim * self.sequence


MODELS = {
    "qwen3-0.6b": Model(28, 1024, 16, 8, 3072, 151936, 1000000, 4096, 2, "float32"),
    "qwen3-1.7b": Model(28, 2048, 16, 8, 6144, 151936, 1000000, 4096, 2, "float32"),
    "qwen3-8b": Model(36, 4096, 32, 8, 12288, 151936, 1000000, 8192, 1),
    "llama3-8b": Model(32, 4096, 32, 8, 14336, 128256, 500000, 8192, 1),
    "qwen3-30b-a3b": Model(48, 2048, 32, 4, 768, 151936, 1000000, 4096, 1, experts=128, experts_top_k=8),
    "qwen3-moe-small": Model(12, 2048, 32, 4, 768, 151936, 1000000, 4096, 2, experts=64, experts_top_k=8),
}
OPTIMIZERS = {
    "adamw": {"name": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "stochastic_adamw": {"name": "stochastic_adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1,
                         "state_dtype": "bfloat16"},
    "muon": {"name": "muon", "lr": 3e-4, "adjust_lr_fn": "match_rms_adamw", "adamw": {"betas": [0.9, 0.95], "weight_decay": 0.1}},
}


def write_random_tokens(path, model):
    num_sequences = min(64, max(16, 2**24 // model.sequence))
    ids = numpy.random.default_rng(1).integers(model.vocabulary, size=model.sequence * num_sequences + 1, dtype=numpy.uint32)
    path.write_bytes(ids.tobytes())


def configuration(model, folder, *, steps, warm_up, optimizer="adamw", device="cuda", num_ranks=1, microbatches=1,
                  cuda_graph=False):
    """Of one of the training step's programs, whose files lie in `folder`: tokens.bin, log, report.json."""
    tokens = folder / "tokens.bin"
    if not tokens.exists():
        write_random_tokens(tokens, model)
    config = json.loads((REPOSITORY / f"examples/qwen3_{model.family}/pretrain/pretrain.json").read_text())
    del config["export_to"], config["sample"]
    config["launch"] = {"device": device, "num_threads": 1 if device == "cpu" else None}
    config["data"] = {"kind": "tokens", "path": str(tokens), "dtype": "uint32", "sequence_length": model.sequence,
                      "shuffle": True, "global_batch_size": model.microbatch * microbatches * num_ranks,
                      "microbatch_size": model.microbatch, "num_workers": 1}
    config["model_provider"].update(model=model.config(), dtype="bfloat16")
    config["trainer"]["schedule"]["total_steps"] = steps
    config["trainer"]["logging"] = {"period_steps": 10000, "tracker": {"provider": "jsonl", "path": str(folder / "log")}}
    if cuda_graph:
        config["trainer"]["cuda_graph"] = {}
    config["optimizer"] = OPTIMIZERS[optimizer]
    config["lr_scheduler"]["scheduler"]["phases"] = [
        {"mode": "rest", "target_multiplier": 1.0, "curve": {"type": "linear"}}]
    config["report"] = str(folder / "report.json")
    config["num_warm_up_steps"] = warm_up
    return config
