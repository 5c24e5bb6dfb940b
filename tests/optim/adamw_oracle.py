"""Runs 100 fp64 steps of torch.optim.AdamW for each option set and prints the resulting parameters, one line a case.

The C++ side (adamw_test.cpp) starts from the same values, which both sides compute with the same formulas.
"""

import math

import torch

SIZE = 37
CASES = [
    {},
    {"weight_decay": 0.0},
    {"weight_decay": 0.3, "eps": 1e-3},
    {"betas": (0.0, 0.5)},
    {"amsgrad": True},
    {"maximize": True},
    {"amsgrad": True, "maximize": True, "betas": (0.8, 0.95)},
]


def main():
    for options in CASES:
        parameter = torch.tensor([math.sin(i + 1) for i in range(SIZE)], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.AdamW([parameter], lr=1e-2, foreach=False, **options)
        for step in range(100):
            grad = [math.cos(0.37 * step + i) / (1 + 0.05 * step) for i in range(SIZE)]
            parameter.grad = torch.tensor(grad, dtype=torch.float64)
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - 0.005 * step)
            optimizer.step()
        print(" ".join(f"{value:.17g}" for value in parameter.tolist()))


if __name__ == "__main__":
    main()
