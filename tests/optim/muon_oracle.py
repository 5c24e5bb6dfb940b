"""Prints the parameters of muon_test.cpp after steps of Muon, for each record of a list (a JSON array of a job's `optimizer`).

The first line of a record is NumPy's, in float64, after the given number of steps: the formulas of d9d/optim/muon.h and of
AdamW, with a Newton-Schulz iteration of its own. The second has the matrices alone after one step of torch.optim.Muon in
float32, which rounds to bfloat16 inside.
"""

import json
import math
import sys

import numpy as np
import torch

# name: shape, (out, in), whether Muon updates it
PARAMETERS = {
    "square": ((12, 12), (12, 12), True),
    "tall": ((20, 7), (20, 7), True),
    "flat": ((6, 15), (6, 15), True),
    "experts": ((3, 5, 8), (8, 5), True),
    "norm": ((9,), None, False),
    "embedding": ((10, 4), None, False),
    "head": ((4, 10), None, False),
    "router": ((3, 6), None, False),
}


def start(index, shape):
    return np.sin(np.arange(math.prod(shape)) + 1.0 + 10 * index).reshape(shape)


def gradient(index, shape, step):
    position = np.arange(math.prod(shape), dtype=np.float64)
    return (np.cos(position * position * 0.37 + 0.61 * step + 10 * index) / (1 + 0.05 * step)).reshape(shape)


def newton_schulz(matrix, record):
    a, b, c = record["ns_coefficients"]
    x = matrix / max(np.sqrt((matrix * matrix).sum()), record["eps"])
    for _ in range(record["ns_steps"]):
        x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
    return x


def factor(sizes, record):
    if record["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * math.sqrt(max(sizes))
    return math.sqrt(max(1.0, sizes[0] / sizes[1]))


def run(record, steps):
    values = {name: start(index, shape) for index, (name, (shape, _, _)) in enumerate(PARAMETERS.items())}
    first = {name: np.zeros_like(value) for name, value in values.items()}
    second = {name: np.zeros_like(value) for name, value in values.items()}
    adamw, momentum = record["adamw"], record["momentum"]
    for step in range(steps):
        rate = record["lr"] * (1 - 0.005 * step)
        for index, (name, (shape, sizes, is_matrix)) in enumerate(PARAMETERS.items()):
            grad = gradient(index, shape, step)
            if is_matrix:
                first[name] = momentum * first[name] + (1 - momentum) * grad
                direction = momentum * first[name] + (1 - momentum) * grad if record["nesterov"] else first[name]
                update = np.stack([newton_schulz(matrix, record) for matrix in direction.reshape(-1, *shape[-2:])])
                decayed = values[name] * (1 - rate * record["weight_decay"])
                values[name] = decayed - rate * factor(sizes, record) * update.reshape(shape)
                continue
            own_rate, (beta1, beta2) = rate * adamw["lr_factor"], adamw["betas"]
            first[name] = beta1 * first[name] + (1 - beta1) * grad
            second[name] = beta2 * second[name] + (1 - beta2) * grad * grad
            root = np.sqrt(second[name] / (1 - beta2 ** (step + 1))) + adamw["eps"]
            decayed = values[name] * (1 - own_rate * adamw["weight_decay"])
            values[name] = decayed - own_rate * first[name] / (1 - beta1 ** (step + 1)) / root
    return values


def step_of_torch(record):
    keys = ("lr", "weight_decay", "momentum", "nesterov", "eps", "ns_steps", "adjust_lr_fn")
    options = {key: record[key] for key in keys} | {"ns_coefficients": tuple(record["ns_coefficients"])}
    values = {}
    for index, (name, (shape, _, is_matrix)) in enumerate(PARAMETERS.items()):
        if not is_matrix:
            continue
        results = []
        for value, grad in zip(start(index, shape).reshape(-1, *shape[-2:]), gradient(index, shape, 0).reshape(-1, *shape[-2:])):
            if name == "experts":  # torch takes [out, in]
                value, grad = value.T, grad.T
            parameter = torch.tensor(value, dtype=torch.float32, requires_grad=True)
            parameter.grad = torch.tensor(grad, dtype=torch.float32)
            torch.optim.Muon([parameter], **options).step()
            result = parameter.detach().numpy()
            results.append(result.T if name == "experts" else result)
        values[name] = np.stack(results)
    return values


def main(records, steps):
    for record in json.loads(records):
        for values in (run(record, int(steps)), step_of_torch(record)):
            print(" ".join(f"{value:.17g}" for each in values.values() for value in each.flatten()))


if __name__ == "__main__":
    main(*sys.argv[1:])
