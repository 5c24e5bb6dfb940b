"""Compiles Triton kernels into a C++ header, on a machine that needs no GPU.

usage: compile.py KERNELS.py HEADER.h        KERNELS.py has a list KERNELS, as squared_relu.py
"""

import importlib.util
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)


def compiled(kernel, types, block):
    names = [name for name in kernel.arg_names if name != "BLOCK"]
    signature = dict(zip(names, types.split(), strict=True)) | {"BLOCK": "constexpr"}
    return triton.compile(ASTSource(kernel, signature, {"BLOCK": block}), target=HOPPER, options={"num_warps": 4})


def main():
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location(source.stem, source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = [f"// Made by compile.py of {source.name}.", "#pragma once", '#include "triton_kernel.h"', ""]
    for kernel, types, block in module.KERNELS:
        binary = compiled(kernel, types, block)
        metadata = binary.metadata
        name = metadata.name
        code = ",".join(map(str, binary.asm["cubin"]))
        lines += [f"alignas(16) inline const unsigned char k_{name}_code[] = {{{code}}};",
                  f"inline const CompiledKernel k_{name}{{k_{name}_code, \"{name}\", {block}, "
                  f"{32 * metadata.num_warps}, {metadata.shared}}};"]
    target.write_text("\n".join(lines) + "\n")


main()
