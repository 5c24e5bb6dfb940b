"""What the comparisons of whole training programs with torch's share: sizes, tokens, our program and its configuration, the
peer's processes and tables of both."""

import array
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
OPTIMIZER = {"name": "adamw", "lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}
EPSILON = 1e-8  # of both
WARM_UP = 5  # steps that times leave out


class Case(NamedTuple):
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    intermediate: int
    vocabulary: int
    sequence: int
    microbatch: int  # sequences of a GPU and a step
    head_dim: int = 128
    rope_base: int = 1000000


def tolerance(name):
    """Of the one table of tolerances."""
    text = (REPOSITORY / "tests/support/tolerances.h").read_text()
    return float(re.search(rf'Tolerance{{"{re.escape(name)}",\s*([0-9.e+-]+),', text)[1])


def write_tokens(path, case, num_samples):
    """A walk that can be learnt: a token says the next but for four bits."""
    draw, token, ids = random.Random(1), 0, array.array("I")
    for _ in range(num_samples * case.sequence + 1):
        ids.append(token)
        token = (token * 5 + draw.randrange(16)) % case.vocabulary
    path.write_bytes(ids.tobytes())


def write_documents(path, case, num_samples, documents):
    """Documents of random lengths, of which every `documents` fill a sequence. The last token of the vocabulary ends each."""
    draw, token, ids, end = random.Random(1), 0, array.array("I"), case.vocabulary - 1
    for _ in range(num_samples):
        bounds = [0, *sorted(draw.sample(range(1, case.sequence), documents - 1)), case.sequence]
        for begin, after in zip(bounds, bounds[1:]):
            for _ in range(begin, after):
                ids.append(token)
                token = (token * 5 + draw.randrange(16)) % end
            ids.append(end)
    path.write_bytes(ids.tobytes())
    return {"path": str(path), "end_of_document": end, "view": {"kind": "packed", "buffer_size": documents}}


def configuration(case, dtype, folder, options, mesh, global_batch_size):
    """Of qwen3_dense_pretrain, whose files lie in `folder`: tokens.bin, ours.jsonl, export."""
    config = json.loads((REPOSITORY / "examples/qwen3_dense/pretrain/pretrain.json").read_text())
    layer = {"hidden_size": case.hidden, "intermediate_size": case.intermediate, "num_attention_heads": case.heads,
             "num_key_value_heads": case.key_value_heads, "rms_norm_eps": 1e-6, "head_dim": case.head_dim}
    config["model_provider"] = {"model": {"layer": layer, "num_hidden_layers": case.layers, "rope_base": case.rope_base,
                                          "max_position_ids": case.sequence, "split_vocab_size": {"all": case.vocabulary},
                                          "split_vocab_order": ["all"]},
                                "checkpointing": False, "dtype": dtype, "fsdp": {"gradient_dtype": "float32"}}
    del config["sample"]
    config["launch"] = {"device": options.device, "num_threads": 1 if options.device == "cpu" else None}
    config["mesh"] = mesh
    config["data"] = {"kind": "tokens", "path": str(folder / "tokens.bin"), "dtype": "uint32", "sequence_length": case.sequence,
                      "shuffle": False, "global_batch_size": global_batch_size, "microbatch_size": case.microbatch,
                      "num_workers": 1}
    config["trainer"]["schedule"]["total_steps"] = options.steps
    config["trainer"]["logging"] = {"period_steps": 1, "tracker": {"provider": "jsonl", "path": str(folder / "ours.jsonl")}}
    config["optimizer"] = OPTIMIZER
    config["lr_scheduler"]["scheduler"] = {"initial_multiplier": 1.0, "phases": [
        {"mode": "rest", "target_multiplier": 1.0, "curve": {"type": "linear"}}]}
    config["export_to"] = str(folder / "export")
    return config


def run_ours(folder, config, options, *arguments, until=None):
    """Lines of the log; ends the program once it has logged `until` steps, which spares the second export."""
    path, log = folder / "config.json", folder / "ours.jsonl"
    path.write_text(json.dumps(config))
    log.unlink(missing_ok=True)
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ}
    with open(folder / "ours.stderr", "w+") as errors:
        process = subprocess.Popen([options.programs / "qwen3_dense_pretrain", path, *arguments], stdout=subprocess.DEVNULL,
                                   stderr=errors, env=environment)
        while process.poll() is None:
            time.sleep(0.05)
            if until and log.exists() and log.read_text().count("\n") >= until:
                process.terminate()
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) < (until or 1):
            errors.seek(0)
            raise RuntimeError(f"ours ended with exit code {process.returncode}: {errors.read()[-2000:]}")
    return [json.loads(line) for line in lines[:until]]


def run_peer(script, folder, arguments, options):
    """`script --peer ARGUMENTS` as ranks under torchrun; what its first rank wrote into peer.json."""
    path = folder / "peer.arguments.json"
    path.write_text(json.dumps({"folder": str(folder), "device": options.device, "steps": options.steps, **arguments}))
    result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks),
                             script, "--peer", path], capture_output=True, text=True, errors="replace",
                            env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1", **os.environ})
    if result.returncode:
        raise RuntimeError(f"torch's ended with exit code {result.returncode}: {result.stderr[-4000:]}")
    return json.loads((folder / "peer.json").read_text())


def peer_device(arguments):
    """Of this rank under torchrun; makes the process group."""
    import torch
    import torch.distributed as dist

    if arguments["device"] == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def leave_peer():
    import torch.distributed as dist

    dist.destroy_process_group()
    # Without the interpreter's end: now and then a thread of torch still runs there, and the process aborts.
    sys.stdout.flush()
    os._exit(0)


def largest(values):
    """NaN if one is."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else max(values)


def gaps_of_losses(ours, theirs):
    return [abs(mine["loss"] - other["loss"]) / other["loss"] for mine, other in zip(ours, theirs, strict=True)]


def row_of_times(title, steps, tokens):
    """Of a table: ms a step (p10..p90), tokens/s of all ranks. Returns the median, too."""
    seconds = [step["step_seconds"] for step in steps[WARM_UP:]]
    deciles = statistics.quantiles(seconds, n=10, method="inclusive")
    median = statistics.median(seconds)
    return f"| {title} | {1e3 * median:.1f} ({1e3 * deciles[0]:.1f}..{1e3 * deciles[-1]:.1f}) | {tokens / median:,.0f} |", median
