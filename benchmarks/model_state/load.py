"""Loading a folder into allocated parameters: ours beside torch, and beside plain copies, on the CPU.

    .venv/bin/python benchmarks/model_state/load.py [--gib 2] [--rounds 7] [--programs build/release/bin]

The file is in the page cache. Each round runs every program once, in turns, three loads each of which the fastest counts;
a ratio is taken within a round, and the median over rounds is printed with the first and third quartile. torch has as many
threads as ours.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 3
OURS = (("identity", 4), ("merge", 4), ("memcpy", 2), ("mapped", 2), ("pread", 2), ("mapped", 4), ("pread", 4))


def state(gib: float) -> dict[str, torch.Tensor]:
    """Layers with the shapes of Qwen3-1.7B."""
    sizes = {"self_attn.q_proj": (2048, 2048), "self_attn.k_proj": (1024, 2048), "self_attn.v_proj": (1024, 2048),
             "self_attn.o_proj": (2048, 2048), "mlp.gate_proj": (6144, 2048), "mlp.up_proj": (6144, 2048),
             "mlp.down_proj": (2048, 6144), "input_layernorm": (2048,), "post_attention_layernorm": (2048,)}  # fmt: skip
    tensors: dict[str, torch.Tensor] = {}
    num_bytes = 0
    while num_bytes < gib * 2**30:
        layer = len(tensors) // len(sizes)
        for name, shape in sizes.items():
            x = torch.randn(shape, dtype=torch.bfloat16)
            tensors[f"model.layers.{layer}.{name}.weight"] = x
            num_bytes += x.nbytes
    return tensors


def merged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    result = {}
    for name, x in tensors.items():
        if name.endswith("q_proj.weight"):
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            result[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif name.endswith("gate_proj.weight"):
            result[name.replace("gate_proj", "gate_up_proj")] = torch.cat([x, tensors[name.replace("gate", "up")]])
        elif not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
            result[name] = x
    return result


def torch_server(file: Path) -> None:
    """A process of its own, as ours: for each line (identity or merge) it loads, and prints the seconds."""
    parameters = {"identity": load_file(file)}
    parameters["merge"] = merged(parameters["identity"])
    parameters = {what: {name: x.clone() for name, x in each.items()} for what, each in parameters.items()}
    for line in sys.stdin:
        what = line.strip()
        start = time.perf_counter()
        loaded = load_file(file)
        for name, x in (merged(loaded) if what == "merge" else loaded).items():
            parameters[what][name].copy_(x)
        print(time.perf_counter() - start, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--server", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.server:
        return torch_server(arguments.server)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_file(state(arguments.gib), file, {"format": "pt"})
        measure(arguments, file)


def measure(arguments: argparse.Namespace, file: Path) -> None:
    command = [sys.executable, __file__, "--server", file, "--threads", str(arguments.threads)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for what, threads in OURS:
            program = [arguments.programs / "model_state_benchmark", file.parent, str(REPEATS), what, str(threads)]
            output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
            seconds.setdefault(f"{what} {threads}", []).append(min(map(float, output.split())))
            if what in ("identity", "merge"):
                times = []
                for _ in range(REPEATS):
                    server.stdin.write(what + "\n")
                    server.stdin.flush()
                    times.append(float(server.stdout.readline()))
                seconds.setdefault(f"torch {what}", []).append(min(times))
    server.stdin.close()
    server.wait()
    gigabytes = file.stat().st_size / 1e9
    print(f"{gigabytes:.2f} GB\n\n| what | seconds, median | GB/s |\n|---|---|---|")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"| {name} | {median:.3f} | {gigabytes / median:.2f} |")
    print("\n| speed of one over the other | median | quartiles |\n|---|---|---|")
    pairs = (("identity 4", "torch identity"), ("identity 4", "memcpy 2"), ("merge 4", "torch merge"),
             ("mapped 2", "pread 2"), ("mapped 4", "pread 4"))  # fmt: skip
    for ours, other in pairs:
        ratios = [b / a for a, b in zip(seconds[ours], seconds[other], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"| {ours} / {other} | {median:.2f} | {low:.2f} .. {high:.2f} |")


main()
