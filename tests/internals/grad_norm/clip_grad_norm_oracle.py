"""torch.nn.utils.clip_grad_norm_ on the gradients of grad_norm_test.cpp: prints `order max_norm norm` and the clipped elements."""

import math

import torch

SIZES = [(3,), (2, 5), (1,)]


def main():
    for order in (1.0, 2.0, 3.0, math.inf):
        for max_norm in (1.0, 5.0, 1e6):
            parameters = [torch.zeros(size, dtype=torch.float64) for size in SIZES]
            for index, parameter in enumerate(parameters):
                numbers = [math.sin(1 + 3 * index + i) * 2 for i in range(parameter.numel())]
                parameter.grad = torch.tensor(numbers, dtype=torch.float64).view(parameter.shape)
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=order)
            clipped = torch.cat([parameter.grad.flatten() for parameter in parameters]).tolist()
            print(order, max_norm, f"{norm.item():.17g}", " ".join(f"{value:.17g}" for value in clipped))


if __name__ == "__main__":
    main()
