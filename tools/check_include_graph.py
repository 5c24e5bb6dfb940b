#!/usr/bin/env python3
"""Who may include whom in d9d/. The table below is the rule; what it does not list is an error.

A file belongs to the area with the longest matching name. It may include its own area, the areas (or parts of them)
that its row lists, the third-party headers that its row lists, and the C++ standard library. tests/, examples/ and
benchmarks/ stand above the library and are free. docs/architecture.md shows the areas by floors, those that include others
above them; --floors prints them. The folders of the loop have an order too.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import source_tree

POSIX = ("fcntl.h", "unistd.h", "sys/", "dlfcn.h", "poll.h", "pthread.h", "sched.h", "signal.h", "spawn.h", "stdio.h", "malloc.h", "glob.h", "netdb.h",
         "netinet/", "arpa/inet.h")
JSON = ("nlohmann/json.hpp", "nlohmann/json_fwd.hpp")
TORCH = ("ATen/", "c10/", "torch/csrc/autograd/", "torch/headeronly/")
C10D = ("torch/csrc/distributed/c10d/",)
CUDA = ("cuda.h", "cuda_runtime_api.h", "cuda_bf16.h", "cuda_fp16.h")


class Area(NamedTuple):
    includes: tuple[str, ...] = ()  # areas, or folders of areas; base is open to all
    third_party: tuple[str, ...] = ()  # headers, or folders of headers that end in a slash


AREAS = {
    "base": Area((), JSON + POSIX + ("cxxabi.h", "pcre2.h")),
    "core": Area((), TORCH + C10D + CUDA + JSON + POSIX),
    "core/device/cuda_plugin": Area(("core",), TORCH + CUDA + ("torch/csrc/cuda/", "nvtx3/")),
    "pipelining/api": Area(("core",)),
    "pipelining/program": Area(),
    "pipelining/schedules": Area(("pipelining/program",)),
    "pipelining/executor": Area(("pipelining/program", "pipelining/schedules", "pipelining/api", "core"), TORCH + JSON),
    "pipelining/simulator": Area(("pipelining/program", "pipelining/schedules", "pipelining/api"), JSON),
    "tracker": Area((), JSON + POSIX),
    "lr_scheduler": Area((), JSON),
    "tokenizer": Area((), JSON + ("pcre2.h",)),
    "kernels": Area(("core/autograd", "core/device", "core/dtype", "core/packed_sequences", "core/rng"), TORCH + CUDA),
    "kernels/linear/cuda_plugin": Area(("kernels",), ("cublasLt.h",)),
    "kernels/attention/cudnn_plugin": Area(("kernels",), ("cudnn_frontend.h", "cuda_runtime_api.h")),
    "modules": Area(("core",), TORCH + (  # adopt.cpp reads modules of torch::nn
        "torch/nn/module.h", "torch/nn/modules/embedding.h", "torch/nn/modules/linear.h", "torch/nn/modules/normalization.h")),
    "testing": Area(("core",), TORCH + C10D),
    "metrics": Area(("core",), TORCH),
    "data": Area(("core", "tokenizer"), TORCH + JSON + POSIX),
    "data/text/arrow_plugin": Area(("data/text", "tokenizer/unicode"), ("arrow/", "parquet/") + JSON),
    "optim": Area(("core", "kernels"), TORCH),
    "blocks": Area(("modules", "core", "kernels"), TORCH),
    "peft": Area(("modules", "blocks", "model_state", "core"), TORCH + JSON),
    "model_state": Area(("modules", "core"), TORCH + JSON + ("xxhash.h",)),
    "checkpoint": Area(("core", "model_state"), TORCH + JSON),
    "parallelism": Area(("modules", "blocks", "core", "kernels"), TORCH),
    "internals": Area(("core", "kernels", "metrics", "modules", "pipelining/api"), TORCH + JSON),
    "models": Area(
        ("modules", "blocks", "kernels", "parallelism", "pipelining/api", "model_state", "core", "tokenizer"), TORCH + JSON),
    "loop": Area(
        ("core", "kernels", "modules", "blocks", "models", "peft", "parallelism", "internals")
        + ("pipelining/api", "pipelining/executor", "pipelining/program", "pipelining/schedules", "pipelining/simulator")
        + ("checkpoint", "model_state", "data", "metrics", "optim", "tokenizer", "tracker", "lr_scheduler"),
        TORCH + JSON + POSIX,
    ),
}

# The folders of an area, the lowest first: a file may include its own folder and lower ones.
FOLDERS = {
    "loop": ("config", "task", "graphs", "checks", "step", "checkpoint", "job", "language_model", "measure", "run"),
}

# Of LibTorch, what a header may include (1.6 s at most): the rest takes 4 to 18 s of every file that includes it.
LIGHT = ("ATen/core/Tensor.h", "ATen/core/TensorBase.h", "ATen/core/ATen_fwd.h", "c10/")

# What one file may know of this library, and one class may hold.
MOST_INCLUDES = 16
MOST_CLASS_LINES = 170
CLASS = re.compile(r"^(?:class|struct) (?P<name>\w+)[^;{]*\{[ \t]*\n(?P<body>.*?)^\};", re.MULTILINE | re.DOTALL)

FLOORS = re.compile(r"^<!-- floors -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # in docs/architecture.md

INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]", re.MULTILINE)


def within(path: str, names: tuple[str, ...]) -> bool:
    return any(path == name or path.startswith(name.rstrip("/") + "/") for name in names)


def area_of(path: str) -> str | None:
    """`pipelining/api/x.h` -> `pipelining/api`."""
    return max((name for name in AREAS if within(path, (name,))), key=len, default=None)


def wrong_folder(area: str, source: str, target: str) -> str | None:
    """Why a file of the folder `source` of an area may not include one of `target`; None when it may."""
    folders = FOLDERS[area]
    if source not in folders or target not in folders:
        return f"expected one of {area}'s folders ({', '.join(folders)}). Move the file, or list the folder"
    if folders.index(target) <= folders.index(source):
        return None
    return f"{area}/{source} may not include {area}/{target}, which is above it. Move the code"


def wrong_edge(source: Path, bracket: str, target: str) -> str | None:
    """Why `source` (relative to d9d/) may not include `target`; None when it may."""
    area = area_of(str(source))
    if area is None:
        return "expected d9d/<area>/ to be an area of tools/check_include_graph.py. Move the file, or list the area"
    rule = AREAS[area]
    if target.startswith("d9d/"):
        if area in FOLDERS and within(target.removeprefix("d9d/"), (area,)):
            return wrong_folder(area, *(str(path).split("/")[1] for path in (source, target.removeprefix("d9d/"))))
        if within(target.removeprefix("d9d/"), ("base", area, *rule.includes)):
            return None
        allowed = ", ".join(("base", area, *rule.includes))
        return f"{area} may not include {target}; it may include {allowed}. Move the code, or change the design"
    if bracket == '"':
        return f'expected "d9d/..." or <...>, got "{target}". The include root is the repository'
    is_standard = "/" not in target and "." not in target
    if not is_standard and not within(target, rule.third_party):
        return f"{area} does not list <{target}>. Hide it behind a type of d9d, or list it"
    return None


def is_heavy(source: Path, target: str) -> bool:
    return source.suffix == ".h" and within(target, TORCH + C10D) and not within(target, LIGHT)


def floor_of(name: str) -> int:
    """0 for base; of others one more than the highest that they include."""
    if name == "base":
        return 0
    included = {area_of(target) for target in AREAS[name].includes} - {name}
    return 1 + max((floor_of(area) for area in included if area), default=0)


def floors() -> str:
    """A line an area: its floor, and what it includes beside base, from the highest on."""
    lines = []
    names = [name for name in AREAS if "plugin" not in name]
    for name in sorted(names, key=lambda name: (-floor_of(name), name)):
        included = {str(area_of(target)) for target in AREAS[name].includes}
        below = ", ".join(sorted(included, key=lambda area: (-floor_of(area), area)))
        lines.append(f"{floor_of(name)}  {name:<15} {below}".rstrip())
    return "\n".join(lines) + "\n"


def check_floors(root: Path, report: source_tree.Report) -> None:
    page = Path("docs/architecture.md")
    if not (root / page).exists():
        return
    text = source_tree.read(root / page)
    drawn = FLOORS.search(text)
    if drawn is None or drawn[1] != floors():
        report.add(page, source_tree.line_of(text, drawn.start()) if drawn else 1, "floors",
                   "expected the floors that tools/check_include_graph.py --floors prints. Replace them")


def main() -> None:
    if sys.argv[1:] == ["--floors"]:
        return print(floors(), end="")
    root = source_tree.root_from_arguments()
    report = source_tree.Report(root)
    for path in source_tree.files(root, folders=("d9d",)):
        text = source_tree.without_comments(source_tree.read(root / path))
        for match in INCLUDE.finditer(text):
            line, target = source_tree.line_of(text, match.start(2)), match[2]
            problem = wrong_edge(path.relative_to("d9d"), match[1], target)
            if problem:
                report.add(path, line, "include-graph", problem)
            elif is_heavy(path, target):
                report.add(path, line, "heavy-header", f"<{target}> is slow. Include it in the .cpp")
        num_includes = len({match[2] for match in INCLUDE.finditer(text) if match[2].startswith("d9d/")})
        if num_includes > MOST_INCLUDES:
            report.add(path, 1, "budget", f"expected at most {MOST_INCLUDES} headers of d9d, got {num_includes}. Cut the file")
        for match in CLASS.finditer(text):
            num_lines = match["body"].count("\n")
            if num_lines > MOST_CLASS_LINES:
                report.add(path, source_tree.line_of(text, match.start()), "budget",
                           f"expected a class of at most {MOST_CLASS_LINES} lines, got {num_lines}. Cut {match['name']}")
    check_floors(root, report)
    report.end()


main()
