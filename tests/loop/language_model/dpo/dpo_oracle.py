"""Computes the loss of Hugging Face trl from given logits, with its own DPOTrainer._compute_loss.

    dpo_oracle.py FILE      FILE: {"betas", "logits" and "reference" [2 P, S, V], "labels" [2 P, S], -100: none}; rows 2 p
                            and 2 p + 1 are the chosen and the rejected answer of pair p

Prints {"loss", "gradient" of the logits, "metrics"} as JSON, a line for each beta.
"""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl.trainer.dpo_trainer import DPOTrainer


def by_answer(rows):
    """trl has all chosen answers before all rejected ones."""
    return torch.cat([rows[0::2], rows[1::2]])


class Model(torch.nn.Module):
    """A model whose logits are given. Position i predicts token i + 1."""

    def __init__(self, logits, labels):
        super().__init__()
        self.logits, self.labels = by_answer(logits), by_answer(labels)

    def forward(self, **_):
        targets = self.labels.clamp(min=0)
        each = self.logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        rest = torch.zeros_like(each)
        return SimpleNamespace(log_probs=each * (self.labels != -100), entropy=rest, mean_logits=rest, is_top1=rest.bool())


def compute(case, beta):
    logits = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(case["reference"], dtype=torch.float64)
    labels = torch.tensor(case["labels"])
    counted = by_answer(labels) != -100
    one_more = torch.nn.functional.pad(counted, (1, 0)).long()  # of tokens: one more than labels
    metrics = {"train": defaultdict(list)}
    model = Model(logits, labels)
    alone = SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x)
    trainer = SimpleNamespace(
        model=model, ref_model=Model(reference, labels), accelerator=alone, _metrics=metrics, _total_train_tokens=0, _tp_size=1,
        aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=False, f_divergence_type="reverse_kl", beta=beta,
        loss_types=["sigmoid"], loss_weights=[1.0], use_weighting=False,
        args=SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None))
    model.is_gradient_checkpointing = False
    inputs = {"input_ids": torch.zeros_like(one_more), "completion_mask": one_more, "attention_mask": torch.ones_like(one_more)}
    loss = DPOTrainer._compute_loss(trainer, model, inputs, False)
    loss.backward()
    print(json.dumps({"loss": loss.item(), "gradient": logits.grad.tolist(),
                      "metrics": {name: values[0] for name, values in metrics["train"].items()}}))


def main(path):
    with open(path) as file:
        case = json.load(file)
    for beta in case["betas"]:
        compute(case, beta)


main(sys.argv[1])
