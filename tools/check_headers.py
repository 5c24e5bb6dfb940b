#!/usr/bin/env python3
"""Compiles each header of d9d/ alone, twice included: it names what it uses and guards itself.

A header that passed is not compiled again until it, a d9d header that it includes, the compiler or requirements.txt
changes (stamps in build/lint). With D9D_TURN=k/n in the environment, only every n-th header from the k-th on.
"""

import hashlib
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import source_tree

COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-DUSE_DISTRIBUTED", "-DUSE_RPC", "-DUSE_TENSORPIPE"]


def wheel_includes(root: Path) -> list[str]:
    found = sorted(root.glob(".venv/lib/python3*/site-packages"))
    folders = ["torch/include", "torch/include/torch/csrc/api/include", "nvidia/cu13/include", "pyarrow/include"]
    return [f"-isystem{found[0] / folder}" for folder in folders] if found else []


def included(root: Path, path: Path, seen: set[Path]) -> set[Path]:
    """The d9d headers that `path` reaches, itself among them."""
    if path not in seen and (root / path).exists():
        seen.add(path)
        for name in re.findall(r'^\s*#\s*include\s*"(d9d/[^"]+)"', source_tree.read(root / path), re.MULTILINE):
            included(root, Path(name), seen)
    return seen


def stamp(root: Path, path: Path, compiler_version: str) -> Path:
    parts = [compiler_version, *FLAGS, str(path)]
    parts += [source_tree.read(root / name) for name in sorted(included(root, path, set()))]
    requirements = root / "requirements.txt"
    parts += [source_tree.read(requirements) if requirements.exists() else ""]
    return root / "build/lint/headers" / hashlib.sha256("\0".join(parts).encode()).hexdigest()


def error_of(root: Path, path: Path) -> str | None:
    """The compiler's first error line, or None."""
    command = [COMPILER, *FLAGS, *wheel_includes(root), f"-I{root}", "-fsyntax-only", "-x", "c++", "-"]
    source = f'#include "{path}"\n#include "{path}"\n'
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()[:1]
    return lines[0] if result.returncode else None


def main() -> None:
    root = source_tree.root_from_arguments().resolve()
    report = source_tree.Report(root)
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    turn, num_turns = map(int, os.environ.get("D9D_TURN", "0/1").split("/"))
    headers = source_tree.files(root, (".h",), ("d9d",))[turn::num_turns]
    stamps = {path: stamp(root, path, version) for path in headers}
    waiting = [path for path, passed in stamps.items() if not passed.exists()]
    (root / "build/lint/headers").mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, error in zip(waiting, pool.map(lambda header: error_of(root, header), waiting)):
            if error:
                report.add(path, 1, "header-alone", f"does not compile by itself: {error}. Include what it uses")
            else:
                stamps[path].touch()
    report.end()


main()
