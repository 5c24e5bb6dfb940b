"""Prints, as JSON, where torch.distributed.DeviceMesh places every rank of a mesh and which ranks are in its slices.

device_mesh_oracle.py '{"a": 2, "b": 3}'
"""

import itertools
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

axes = json.loads(sys.argv[1])
num_ranks = 1
for size in axes.values():
    num_ranks *= size
ranks = []
for rank in range(num_ranks):
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    slices = {}
    for count in range(1, len(axes) + 1):
        for names in itertools.combinations(axes, count):
            part = mesh[names if count > 1 else names[0]]
            slices["+".join(names)] = torch.flatten(part.mesh).tolist()
    ranks.append({"coordinate": list(mesh.get_coordinate()), "slices": slices})
    dist.destroy_process_group()
print(json.dumps(ranks))
