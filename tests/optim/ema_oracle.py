"""Prints averages of two parameters after 50 steps for each record of a list (a JSON array of a job's `trainer.ema`,
with the dtype to average in and the one that parameters are rounded to): torch.optim.swa_utils.AveragedModel computes
them.

The C++ side (ema_test.cpp) averages the same values, which both sides compute with the same formulas.
"""

import json
import math
import sys

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SIZE = 37
STEPS = 50


def values(step, index, record):
    exact = [math.sin(i + 1 + 10 * index) + math.cos(0.37 * step + i) / (1 + 0.05 * step) for i in range(SIZE)]
    rounded = torch.tensor(exact, dtype=torch.float64).to(getattr(torch, record["rounded"]))
    return rounded.to(getattr(torch, record["dtype"]))


def averaged(record):
    model = torch.nn.ParameterList(torch.nn.Parameter(values(0, index, record)) for index in range(2))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(record["decay"]))
    if record["start_step"] == 0:
        average.update_parameters(model)  # its first call copies
    for step in range(1, STEPS + 1):
        for index, parameter in enumerate(model):
            parameter.data = values(step, index, record)
        since = step - record["start_step"]
        if since < 0 or since % record["period_steps"] != 0:
            continue
        if record["warmup"]:
            n = since // record["period_steps"]
            average.multi_avg_fn = get_ema_multi_avg_fn(min(record["decay"], (1 + n) / (10 + n)))
        average.update_parameters(model)
    return average.module


for each in json.loads(sys.argv[1]):
    print(" ".join(f"{value:.17g}" for parameter in averaged(each) for value in parameter.tolist()))
