"""Prints, as JSON, inverse frequencies and table rows of transformers for every scaling strategy.

float32 numbers are printed as exactly equal doubles, so that the reader can compare bits.
"""
import json

import torch
import transformers
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

transformers.logging.set_verbosity_error()  # only JSON is printed

ROWS = [0, 1, 2, 17, 100, 255, 1023]
HEAD_DIM, BASE = 64, 150000
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
FACTORS = {"short_factor": [1.0 + 0.01 * i for i in range(32)], "long_factor": [1.0 + 0.7 * i for i in range(32)]}
CASES = {
    "none": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": YARN | {"truncate": False},
    "yarn_truncated": YARN | {"truncate": True, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn_mscale": YARN | {"truncate": False, "mscale": 0.707, "mscale_all_dim": 1.1},
    "yarn_attention_factor": YARN | {"truncate": False, "attention_factor": 1.25},
    "yarn_without_ramp": YARN | {"truncate": True, "original_max_position_embeddings": 5, "beta_fast": 1.0,
                                 "beta_slow": 0.99},
    "yarn_beyond_the_last_dim": YARN | {"truncate": False, "original_max_position_embeddings": 10**7},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 512},
    "longrope_short": {"rope_type": "longrope", "original_max_position_embeddings": 1024} | FACTORS,
    "longrope_long": {"rope_type": "longrope", "original_max_position_embeddings": 256} | FACTORS,
}
# For ntk the sequence length at which dynamic NTK scales the base by exactly `factor`, for longrope one beyond the
# original context.
SEQUENCE_LENGTHS = {"ntk": 1792, "longrope_long": 1024}


def config_of(parameters):
    return Qwen3Config(head_dim=HEAD_DIM, hidden_size=HEAD_DIM, num_attention_heads=1, num_key_value_heads=1,
                       max_position_embeddings=1024, rope_parameters={"rope_theta": BASE} | parameters)


results = {}
for name, parameters in CASES.items():
    config = config_of(parameters)
    if name == "none":
        inverse, scale = Qwen3RotaryEmbedding.compute_default_rope_parameters(config)
    else:
        inverse, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=SEQUENCE_LENGTHS.get(name))
    rotary = Qwen3RotaryEmbedding(config_of(CASES["none"]))
    rotary.inv_freq, rotary.attention_scaling = inverse, scale
    cos, sin = rotary(torch.empty(1, dtype=torch.float64), torch.tensor([ROWS]))
    results[name] = {"inverse": inverse.tolist(), "scale": scale, "cos": cos[0].tolist(), "sin": sin[0].tolist()}
print(json.dumps({"rows": ROWS, "cases": results}))
