#!/usr/bin/env python3
"""What transformers generates for a batch of prompts of different lengths, with small random models in float64.

    generate_batch_oracle.py FOLDER     FAMILY/ as save_pretrained writes it; FAMILY.json: {"prompts", "stop",
        "greedy": {"ids", "log_probs"} of each prompt, "stopped": ids of each prompt}; choices.json, a list of
        {"temperature", "top_k", "top_p", "logits", "probabilities"}
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers.generation import logits_process

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=96, max_position_embeddings=64, attn_implementation="sdpa")
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, decoder_sparse_step=1,
               experts_implementation="eager")
FAMILIES = {
    "qwen3_dense": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=8)),
    "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=8)),
    "llama3": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
}
PROMPTS = [[5], [17, 3, 88, 41, 2, 9, 60, 33, 71], [1, 1, 95], [30, 31, 32, 33, 34]]
NUM_TOKENS = 24


def generate(model, stop=None):
    """Returns (ids, log-probabilities of the ids) of each prompt; prompts are padded at their beginning."""
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=stop,
                             pad_token_id=0, return_dict_in_generate=True, output_logits=True)
    generated = out.sequences[:, longest:]
    scores = torch.stack(out.logits, 1).log_softmax(-1).gather(-1, generated.unsqueeze(-1)).squeeze(-1)
    results = []
    for row, log_probs in zip(generated.tolist(), scores.tolist()):
        end = row.index(stop) + 1 if stop in row else len(row)
        results.append((row[:end], log_probs[:end]))
    return results


def choices():
    torch.manual_seed(3)
    for temperature, top_k, top_p in [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.7), (0.8, 7, 0.9), (2.0, 1, 0.5),
                                      (1.0, 200, 0.01)]:
        logits = torch.randn(4, 60, dtype=torch.float64) * 3
        scores = logits_process.TemperatureLogitsWarper(temperature)(None, logits)
        if top_k:
            scores = logits_process.TopKLogitsWarper(top_k)(None, scores)
        if top_p < 1:
            scores = logits_process.TopPLogitsWarper(top_p)(None, scores)
        yield {"temperature": temperature, "top_k": top_k, "top_p": top_p, "logits": logits.tolist(),
               "probabilities": scores.softmax(-1).tolist()}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for seed, (name, build) in enumerate(FAMILIES.items()):
        torch.manual_seed(seed)
        model = build().double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.8 if parameter.ndim == 1 else 0.0, 0.4)
        model.save_pretrained(folder / name)
        greedy = generate(model)
        stop = greedy[1][0][6]
        (folder / f"{name}.json").write_text(json.dumps({
            "prompts": PROMPTS, "stop": stop, "greedy": [{"ids": ids, "log_probs": log_probs} for ids, log_probs in greedy],
            "stopped": [ids for ids, _ in generate(model, stop)]}))
    (folder / "choices.json").write_text(json.dumps(list(choices())))


if __name__ == "__main__":
    main()
