"""Runs 100 fp64 steps of torch.optim.AdamW from values that bfloat16 can represent and prints the resulting parameters.

The C++ side (stochastic_adamw_test.cpp) starts from the same values, which both sides compute with the same formulas.
"""

import math

import torch

SIZE = 37


def main():
    start = torch.tensor([math.sin(i + 1) for i in range(SIZE)], dtype=torch.float64).to(torch.bfloat16)
    parameter = start.to(torch.float64).requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=2e-4, betas=(0.9, 0.95), weight_decay=0.3, foreach=False)
    for step in range(100):
        grad = [math.cos(0.05 * step + i) / (1 + 0.05 * step) for i in range(SIZE)]
        parameter.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
    print(" ".join(f"{value:.17g}" for value in parameter.tolist()))


if __name__ == "__main__":
    main()
