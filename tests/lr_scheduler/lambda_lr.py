"""Learning rates of torch.optim.lr_scheduler, as JSON.

usage: lambda_lr.py <schedules.json>
The file: a list of {"total_steps", "num_steps", "base", "initial_multiplier", "phases"}.
Output: "piecewise" holds for each schedule the rate of every optimiser step, from LambdaLR with a plain Python
implementation of the phases; "curves" holds LinearLR, CosineAnnealingLR and ExponentialLR over 20 steps from 1 to 0.25
with base 0.1.
"""

import json
import math
import sys

import torch
from torch.optim import lr_scheduler


def learning_rates(make_scheduler, base, num_steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(num_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def curve_value(curve, a, b, p):
    if curve["type"] == "linear":
        return (1 - p) * a + p * b
    if curve["type"] == "cosine":
        return (a + b) / 2 + (a - b) / 2 * math.cos(math.pi * p)
    if curve["type"] == "poly":
        return a + (b - a) * p ** curve["power"]
    a, b = max(a, 1e-8), max(b, 1e-8)
    return a * (b / a) ** p


def multiplier(schedule, step):
    start, value = 0, schedule["initial_multiplier"]
    for phase in schedule["phases"]:
        end = {
            "steps": lambda: start + phase["steps"],
            "percentage": lambda: int(schedule["total_steps"] * phase["percentage"]),
            "rest": lambda: schedule["total_steps"],
        }[phase["mode"]]()
        if step < end:
            return curve_value(phase["curve"], value, phase["target_multiplier"], (step - start) / (end - start))
        start, value = end, phase["target_multiplier"]
    return value


def piecewise(path):
    with open(path) as file:
        schedules = json.load(file)
    return [
        learning_rates(
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: multiplier(schedule, step)),
            schedule["base"],
            schedule["num_steps"],
        )
        for schedule in schedules
    ]


def curves():
    return {
        "linear": learning_rates(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.25, total_iters=20), 0.1, 20),
        "cosine": learning_rates(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=20, eta_min=0.025), 0.1, 20),
        "exponential": learning_rates(lambda o: lr_scheduler.ExponentialLR(o, 0.25 ** (1 / 20)), 0.1, 20),
    }


json.dump({"piecewise": piecewise(sys.argv[1]), "curves": curves()}, sys.stdout)
