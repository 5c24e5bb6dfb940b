"""Prints, as JSON, the load-balancing loss of transformers' Qwen3-MoE for random logits, and its gradient."""
import json

import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

NUM_EXPERTS, TOP_K = 8, 3
torch.manual_seed(0)
logits = torch.randn(40, NUM_EXPERTS, dtype=torch.float64, requires_grad=True)
loss = load_balancing_loss_func((logits,), NUM_EXPERTS, TOP_K)
loss.backward()
print(json.dumps({"logits": logits.flatten().tolist(), "num_experts": NUM_EXPERTS, "top_k": TOP_K, "loss": loss.item(),
                  "grad": logits.grad.flatten().tolist()}))
