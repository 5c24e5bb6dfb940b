"""What a checkpoint beside training costs: the step after it, the next five steps, GB/s, beside torch.distributed.checkpoint.

usage: saves.py [--model qwen3-1.7b] [--ranks N] [--steps N] [--folder FOLDER] [--rows ours,dcp,dcp_pinned]
                [--device cuda|cpu] [--threads N]

Random weights and tokens as in layouts.py; parameters in bfloat16 (--masters float32), moments in float32. A job saves at one third
and at two thirds of its steps and at its end, where it waits. A stall is what the step after a save takes longer than the median of
the steps that see no save; the first save of a job is shown apart, because buffers are made for it. Ours by events of the device at the
ends of steps. torch's: `async_save` of the state dicts of a model with the same tensors, sharded by `fully_shard`, and of its AdamW,
by the host's clock between steps that end with a synchronisation; its step is only the optimiser's on random gradients, so that nothing
but the save differs between steps. Seconds and GB/s: from the call to the complete checkpoint on the disk. Prints Markdown.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from models import MODELS, REPOSITORY, configuration

AFTER = 5  # steps that a save should not slow


def saved_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def report(title, steps_ms, saves, seconds, num_bytes):
    """`steps_ms[i]`: of step i; `saves`: steps before which a save began."""
    busy = {step + i for step in saves for i in range(AFTER + 1)}
    quiet = [ms for step, ms in enumerate(steps_ms) if step >= 3 and step not in busy]
    median = statistics.median(quiet)
    stalls = [steps_ms[step] - median for step in saves]
    after = statistics.median(steps_ms[step + i] for step in saves[1:] for i in range(1, AFTER + 1))
    in_background = statistics.median(seconds[:-1])
    print(f"| {title} | {median:.1f} | {stalls[0]:.1f} | {statistics.median(stalls[1:]):.1f} | {100 * (after / median - 1):+.1f} % | "
          f"{in_background:.2f} | {seconds[-1]:.2f} | {num_bytes / 1e9:.2f} | {num_bytes / 1e9 / in_background:.2f} | "
          f"{100 * statistics.median(stalls[1:]) / 1e3 / seconds[-1]:.1f} % |", flush=True)


def run_ours(model, options, folder):
    saves = folder / "saves"
    config = configuration(model, folder, steps=options.steps, warm_up=3, device=options.device, num_ranks=options.ranks,
                           microbatches=options.microbatches)
    config["mesh"] = {"data_parallel_shard": options.ranks}
    config["trainer"]["model_stage_factory"] = {"master_dtype": options.masters}
    config["trainer"]["checkpointing"] = {"save_dir": str(saves), "period_steps": options.steps // 3, "num_to_keep": 1}
    if options.device == "cpu":
        config["launch"]["num_threads"] = options.threads
    (folder / "config.json").write_text(json.dumps(config))
    result = subprocess.run([options.programs / model.program, folder / "config.json"], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True,
                            env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ})
    if result.returncode:
        raise RuntimeError(result.stderr[-4000:])
    for line in result.stderr.splitlines():
        if "[checkpoint]" in line or "waits for" in line:
            print(line, file=sys.stderr)
    seconds = [float(match[1]) for match in re.finditer(r"saved step \d+ in \S+ \(([0-9.e-]+) s\)", result.stderr)]
    steps = [0.0, *json.loads(Path(config["report"]).read_text())["step_ms"]]
    report("ours", steps, [step for step in range(options.steps // 3, options.steps, options.steps // 3)], seconds, saved_bytes(saves))


def peer(arguments):
    """One rank, under torchrun."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    is_cuda = arguments["device"] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if is_cuda else "gloo")
    dtype = getattr(torch, arguments["dtype"])

    class Layer(nn.Module):
        def __init__(self, shapes):
            super().__init__()
            for name, shape in shapes.items():
                self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02)))

    layers = []
    for shapes in arguments["layers"]:
        layers.append(fully_shard(Layer(shapes)))
    model = nn.ModuleList(layers)
    # AdamW of torch keeps moments in the parameters' dtype; ours in float32. So that both save the same bytes, two float32 tensors
    # of each parameter are saved with it, as masters' jobs of torchtitan do.
    moments = {f"{name}.{slot}": torch.zeros_like(value, dtype=torch.float32)
               for name, value in model.named_parameters() for slot in ("exp_avg", "exp_avg_sq")}
    options = {}
    if arguments["pinned"]:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        options["async_stager"] = DefaultStager(StagingOptions(use_pinned_memory=is_cuda, use_shared_memory=False, use_async_staging=True,
                                                               use_non_blocking_copy=is_cuda))
    folder, period, num_steps = Path(arguments["folder"]) / "dcp", arguments["period"], arguments["steps"]

    def synchronize():
        if is_cuda:
            torch.cuda.synchronize()

    def step():
        with torch.no_grad():
            for name, value in model.named_parameters():
                first, second = moments[f"{name}.exp_avg"], moments[f"{name}.exp_avg_sq"]
                first.to_local().mul_(0.9).add_(value.to_local(), alpha=0.1)
                second.to_local().mul_(0.95).add_(0.05)
                value.to_local().add_(first.to_local().to(dtype), alpha=-1e-6)

    steps_ms, seconds, running = [], [], None
    for index in range(num_steps):
        begin = time.perf_counter()
        if index and index % period == 0:
            state = {"model": model.state_dict(), "moments": moments}
            shutil.rmtree(folder, ignore_errors=True) if dist.get_rank() == 0 else None
            started = time.perf_counter()
            response = dcp.async_save(state, checkpoint_id=str(folder), **options)
            staged = getattr(response, "staging_completion", None)
            running = (started, getattr(response, "upload_completion", response), staged)
        if running and running[2] is not None:
            running[2].result()  # tensors may change after it
            running = (running[0], running[1], None)
        for _ in range(arguments["work"]):
            step()
        synchronize()
        if running and running[1].done():
            seconds.append(time.perf_counter() - running[0])
            running = None
        steps_ms.append(1e3 * (time.perf_counter() - begin))
    if running:
        running[1].result()
        seconds.append(time.perf_counter() - running[0])
    shutil.rmtree(folder, ignore_errors=True) if dist.get_rank() == 0 else None
    dist.barrier()
    started = time.perf_counter()
    dcp.save({"model": model.state_dict(), "moments": moments}, checkpoint_id=str(folder))
    seconds.append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        Path(arguments["result"]).write_text(json.dumps({"steps_ms": steps_ms, "seconds": seconds, "bytes": saved_bytes(folder)}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def layers_of(model):
    """Names and shapes of the parameters, a dictionary a sharded unit."""
    heads, groups, hidden = model.heads * model.head_dim, model.key_value_heads * model.head_dim, model.hidden
    layer = {"q": [heads, hidden], "k": [groups, hidden], "v": [groups, hidden], "o": [hidden, heads], "q_norm": [model.head_dim],
             "k_norm": [model.head_dim], "norm1": [hidden], "norm2": [hidden], "gate": [model.intermediate, hidden],
             "up": [model.intermediate, hidden], "down": [hidden, model.intermediate]}
    table = {"weight": [model.vocabulary, hidden]}
    return [table, *[layer] * model.layers, {"norm": [hidden], **table}]


def run_peer(title, model, options, folder, pinned):
    result = folder / "result.json"
    arguments = {"device": options.device, "dtype": options.masters, "layers": layers_of(model), "pinned": pinned, "folder": str(folder),
                 "period": options.steps // 3, "steps": options.steps, "result": str(result), "work": options.work}
    path = folder / "arguments.json"
    path.write_text(json.dumps(arguments))
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks), __file__,
                          "--peer", path], capture_output=True, text=True, errors="replace",
                         env={"OMP_NUM_THREADS": str(options.threads) if options.device == "cpu" else "1", **os.environ})
    if run.returncode:
        raise RuntimeError(f"torch's ended with exit code {run.returncode}: {run.stderr[-4000:]}")
    numbers = json.loads(result.read_text())
    report(title, numbers["steps_ms"], list(range(options.steps // 3, options.steps, options.steps // 3)), numbers["seconds"], numbers["bytes"])


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(json.loads(Path(sys.argv[2]).read_text()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-1.7b")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=48, help="a multiple of three")
    parser.add_argument("--rows", default="ours,dcp,dcp_pinned")
    parser.add_argument("--masters", choices=["bfloat16", "float32"], default="bfloat16", help="dtype of parameters")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--threads", type=int, default=2, help="of a rank on CPUs; they also copy what is saved")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--vocabulary", type=int, help="smaller than the model's")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence, other than the model's")
    parser.add_argument("--microbatches", type=int, default=1, help="of a step, ours: a longer step hides more of the copies")
    parser.add_argument("--work", type=int, default=12, help="how often torch's step repeats its update, to be as long as ours")
    parser.add_argument("--folder", type=Path, help="where checkpoints go; default: a temporary one")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    model = MODELS[options.model]
    model = model._replace(layers=options.layers or model.layers, vocabulary=options.vocabulary or model.vocabulary,
                           sequence=options.sequence or model.sequence)
    if options.device == "cpu":
        model = model._replace(microbatch=1)
    print(f"{options.model}, {model.layers} layers, {options.ranks} x {options.device}, parameters in {options.masters}, {options.steps} steps of "
          f"{options.microbatches} x {model.microbatch} x {model.sequence} tokens a rank\n")
    print("| | step ms | stall ms: first save | others | next five steps | s beside training | s waiting | GB | GB/s beside training | "
          "stall of a save that waits |\n|---|---|---|---|---|---|---|---|---|---|")
    rows = {"ours": lambda folder: run_ours(model, options, folder),
            "dcp": lambda folder: run_peer("async_save", model, options, folder, False),
            "dcp_pinned": lambda folder: run_peer("async_save, pinned, staged asynchronously", model, options, folder, True)}
    for row in options.rows.split(","):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            rows[row](Path(name))


if __name__ == "__main__":
    main()
