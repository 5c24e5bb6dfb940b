"""Prints draws of random.Random for several seeds as JSON."""
import json
import random

cases = []
for seed in (0, 1, 42 ^ 0x105E7, 2**32 - 1, 2**32, 2**63 + 12345):
    generator = random.Random(seed)
    uniforms = [generator.random() for _ in range(700)]
    order = list(range(1000))
    generator.shuffle(order)
    cases.append({"seed": seed, "uniforms": uniforms, "shuffled": order, "after": generator.random()})
print(json.dumps(cases))
