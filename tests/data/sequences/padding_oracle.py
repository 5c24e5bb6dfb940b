"""Prints twenty padded batches and their pooling masks as JSON."""
import json
import random

from torch import tensor
from torch.nn.utils.rnn import pad_sequence

random.seed(0)
cases = []
for index in range(20):
    items = [[random.randrange(1000) for _ in range(random.randint(1, 9))] for _ in range(random.randint(1, 6))]
    side = ("left", "right")[index % 2]

    def pad(rows, value):
        return pad_sequence([tensor(row) for row in rows], True, value, padding_side=side).tolist()

    mask = pad([[1] * len(row) for row in items], 0)
    first = [[int(column == row.index(1)) for column in range(len(row))] for row in mask]
    last = [[int(column == max(i for i, m in enumerate(row) if m)) for column in range(len(row))] for row in mask]
    cases.append({"items": items, "side": side, "pad_value": -100, "padded": pad(items, -100), "mask": mask,
                  "first": first, "last": last})
print(json.dumps(cases))
