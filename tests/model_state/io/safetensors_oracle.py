"""Reads and writes safetensors files with the Python package, for safetensors_test.cpp.

write PATH   saves one tensor of each dtype (EXAMPLES)
check PATH   the file must hold exactly EXAMPLES, as the Python package reads them
rewrite PATH OTHER   loads PATH and saves it as OTHER
"""

import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def example(dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(6).remainder(2) if dtype == torch.bool else torch.arange(6)
    return values.to(torch.float32).to(dtype).reshape(2, 3)


EXAMPLES = {f"a.{str(dtype).removeprefix('torch.')}": example(dtype) for dtype in DTYPES}
EXAMPLES["scalar \"quoted\" é"] = torch.tensor(3.5)
EXAMPLES["empty"] = torch.empty(0, 4)


def main(action: str, path: str, *rest: str) -> None:
    if action == "write":
        save_file(EXAMPLES, path, {"format": "pt"})
    elif action == "rewrite":
        save_file(load_file(path), rest[0], {"format": "pt"})
    elif action == "check":
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}, file.metadata()
        found = load_file(path)
        assert found.keys() == EXAMPLES.keys(), found.keys() ^ EXAMPLES.keys()
        for name, tensor in EXAMPLES.items():
            assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
            same = found[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))
            assert same, name


main(*sys.argv[1:])
