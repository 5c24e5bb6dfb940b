"""Prints permutations of numpy's default generator as JSON."""
import json

import numpy

sizes = (0, 1, 2, 7, 100, 5000)
seeds = (0, 1, 42, 2**32 - 1, 2**32, 2**63 + 5)
print(json.dumps([{"seed": seed, "order": numpy.random.default_rng(seed).permutation(size).tolist()}
                  for seed in seeds for size in sizes]))
