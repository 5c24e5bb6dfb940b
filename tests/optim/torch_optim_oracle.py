"""Prints the parameters after 100 steps of each optimiser of a list of records (a JSON array of a job's `optimizer`): a
line in fp64 and one in fp32. torch.optim computes them; of Lion, which it has not, the formula of arXiv:2302.06675 here.

The C++ side (torch_optim_test.cpp) starts from the same values, which both sides compute with the same formulas. With a
folder as second argument it also writes parameters and state after 50 steps in fp64 there, into a folder for each record
with its number, by the function of docs/optimizers.md.
"""

import json
import math
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch_state import state_of

SIZE = 37
NAMES = ["layer.weight", "layer.bias", "embedding", "head.weight"]
SPARED = {"layer.bias", "embedding"}


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas, weight_decay):
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                gradient = parameter.grad
                update = (first * average + (1 - first) * gradient).sign()
                parameter -= group["lr"] * (update + group["weight_decay"] * parameter)
                average.copy_(second * average + (1 - second) * gradient)


OPTIMISERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD, "lion": Lion}


def build(record, dtype):
    record = dict(record)
    groups, decay_all, kind = record.pop("groups"), record.pop("decay_all"), record.pop("name")
    parameters, factors = {}, []
    for index, name in enumerate(NAMES):
        values = [math.sin(i + 1 + 10 * index) for i in range(SIZE)]
        parameters[name] = torch.tensor(values, dtype=dtype, requires_grad=True)
    param_groups = []
    for name, parameter in parameters.items():
        found = next((group for group in groups if re.fullmatch(group["parameters"], name)), {})
        own = {key: found[key] for key in ("weight_decay", "betas", "momentum") if found.get(key) is not None}
        if not decay_all and name in SPARED:
            own.setdefault("weight_decay", 0.0)
        factors.append(found.get("lr_factor", 1.0))
        param_groups.append({"params": [parameter]} | own)
    options = {} if kind == "lion" else {"foreach": False}
    return parameters, factors, OPTIMISERS[kind](param_groups, **record, **options)


def run(record, parameters, factors, optimizer, steps):
    for step in steps:
        for index, parameter in enumerate(parameters.values()):
            grad = [math.cos(0.37 * step + i + 10 * index) / (1 + 0.05 * step) for i in range(SIZE)]
            parameter.grad = torch.tensor(grad, dtype=parameter.dtype)
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = record["lr"] * factor * (1 - 0.005 * step)
        optimizer.step()


def main(records, folder=None):
    for number, record in enumerate(json.loads(records)):
        for dtype in (torch.float64, torch.float32):
            parameters, factors, optimizer = build(record, dtype)
            run(record, parameters, factors, optimizer, range(50))
            if folder and dtype == torch.float64:
                own = Path(folder, str(number))
                own.mkdir(parents=True, exist_ok=True)
                save_file(state_of(optimizer, parameters.items()), own / "optimizer.safetensors")
                save_file({name: each.detach() for name, each in parameters.items()}, own / "model.safetensors")
            run(record, parameters, factors, optimizer, range(50, 100))
            print(" ".join(f"{value:.17g}" for each in parameters.values() for value in each.tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
