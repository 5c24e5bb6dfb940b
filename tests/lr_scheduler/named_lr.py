"""Learning rates of transformers' and torch's schedulers for named schedules of d9d, as JSON.

usage: named_lr.py <schedules.json>
The file: a list of [<lr_scheduler of a job>, <number of steps>]. Output: for each the rate of every step, of the base 1.
"""

import json
import sys

import torch
from torch.optim.lr_scheduler import LambdaLR, LinearLR, SequentialLR
from transformers import optimization


def scheduler_of(optimizer, config, steps):
    warmup = config.get("warmup_steps", 0)
    name, least = config["name"], config.get("min_ratio", 0.0)
    if name == "constant":
        return optimization.get_constant_schedule_with_warmup(optimizer, warmup)
    if name == "linear":  # torch's: transformers' falls to 0 only
        if least == 0:
            return optimization.get_linear_schedule_with_warmup(optimizer, warmup, steps)
        rise = [LambdaLR(optimizer, lambda step: step / warmup)] if warmup > 0 else []
        fall = LinearLR(optimizer, 1.0, least, total_iters=steps - warmup)
        return SequentialLR(optimizer, [*rise, fall], [warmup]) if rise else fall
    if name == "cosine":
        return optimization.get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, steps, min_lr_rate=least)
    if name == "wsd":
        decay = config["decay_steps"]
        curve = config.get("decay_curve", {"type": "linear"})
        kind = {"linear": "linear", "cosine": "cosine", "poly": "1-sqrt"}[curve["type"]]
        scheduler = optimization.get_wsd_schedule(optimizer, warmup, decay, num_stable_steps=steps - warmup - decay,
                                                  decay_type=kind, min_lr_ratio=least)
        of_step = scheduler.lr_lambdas[0]  # whose warm-up begins at min_lr_ratio, and ours at 0
        return LambdaLR(optimizer, lambda step: step / warmup if step < warmup else of_step(step))
    return optimization.get_inverse_sqrt_schedule(optimizer, warmup, config.get("timescale"))


def learning_rates(config, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = scheduler_of(optimizer, config, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


with open(sys.argv[1]) as file:
    print(json.dumps([learning_rates(config, steps) for config, steps in json.load(file)]))
