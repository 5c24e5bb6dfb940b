"""Our FSDP beside torch's (`fully_shard`, FSDP2): the same dense model from the same weights on the same tokens, in one run.

usage: fsdp2.py [--cases float32,bfloat16] [--ranks N] [--steps N] [--no-compile] [--device cuda|cpu] [--programs FOLDER]

Ours is the example program qwen3_dense_pretrain; it also makes the weights, which both load. float32: everything in float32,
so that losses must agree; exit code 1 where one differs by more than "fp32 training loss" of tests/support/tolerances.h.
bfloat16: a model of 1.7B parameters for the time of a step; torch keeps float32 parameters and computes in bfloat16, as it
is meant to (MixedPrecisionPolicy), with a layer and the loss through torch.compile; ours keeps bfloat16 parameters and
float32 moments, so that losses part after some steps. Both sum gradients over ranks in float32, clip to a norm of 1.0 and
use AdamW. Prints Markdown: losses side by side, then seconds a step by each program's own clock. cpu: a tiny model, to try
the script.
"""

import argparse
import array
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
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


CASES = {"cuda": {"float32": Case(6, 1024, 16, 8, 3072, 32768, 1024, 2), "bfloat16": Case(28, 2048, 16, 8, 6144, 151936, 4096, 2)},
         "cpu": {"float32": Case(2, 64, 4, 2, 96, 512, 32, 2, 16), "bfloat16": Case(2, 64, 4, 2, 96, 512, 32, 2, 16)}}


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


# Ours ---------------------------------------------------------------------------------------------------------------------


def configuration(case, dtype, folder, options, num_ranks):
    config = json.loads((REPOSITORY / "examples/qwen3_dense/pretrain/pretrain.json").read_text())
    layer = {"hidden_size": case.hidden, "intermediate_size": case.intermediate, "num_attention_heads": case.heads,
             "num_key_value_heads": case.key_value_heads, "rms_norm_eps": 1e-6, "head_dim": case.head_dim}
    config["model_provider"] = {"model": {"layer": layer, "num_hidden_layers": case.layers, "rope_base": case.rope_base,
                                          "max_position_ids": case.sequence, "split_vocab_size": {"all": case.vocabulary},
                                          "split_vocab_order": ["all"]},
                                "checkpointing": False, "dtype": dtype, "fsdp": {"gradient_dtype": "float32"}}
    del config["sample"]
    config["launch"] = {"device": options.device, "num_threads": 1 if options.device == "cpu" else None}
    config["mesh"] = {"data_parallel_shard": num_ranks}
    config["data"] = {"kind": "tokens", "path": str(folder / "tokens.bin"), "dtype": "uint32", "sequence_length": case.sequence,
                      "shuffle": False, "global_batch_size": case.microbatch * options.ranks, "microbatch_size": case.microbatch,
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


# torch's ------------------------------------------------------------------------------------------------------------------


def peer(arguments):
    """One rank, under torchrun."""
    import torch
    import torch.distributed as dist
    from safetensors.torch import load_file
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional

    folder, case = Path(arguments["folder"]), Case(*arguments["case"])
    is_cuda = arguments["device"] == "cuda"
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if is_cuda else "gloo")

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(size))

        def forward(self, x):
            return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.o_proj = linear(case.hidden, case.heads * case.head_dim), linear(case.heads * case.head_dim, case.hidden)
            self.k_proj, self.v_proj = (linear(case.hidden, case.key_value_heads * case.head_dim) for _ in range(2))
            self.q_norm, self.k_norm = Norm(case.head_dim), Norm(case.head_dim)

        def forward(self, x, cos, sin):
            def turned(heads):
                first, second = heads.chunk(2, -1)
                return heads * cos + torch.cat((-second, first), -1) * sin

            q, k, v = (projection(x).unflatten(-1, (-1, case.head_dim)) for projection in (self.q_proj, self.k_proj, self.v_proj))
            q, k, v = (heads.transpose(1, 2) for heads in (turned(self.q_norm(q)), turned(self.k_norm(k)), v))
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o_proj(out.transpose(1, 2).flatten(-2))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = (linear(case.hidden, case.intermediate) for _ in range(2))
            self.down_proj = linear(case.intermediate, case.hidden)

        def forward(self, x):
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = Attention(), FeedForward()
            self.input_layernorm, self.post_attention_layernorm = Norm(case.hidden), Norm(case.hidden)

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(case.vocabulary, case.hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(case.layers))
            self.norm = Norm(case.hidden)

    class Model(nn.Module):  # names as those of transformers
        def __init__(self):
            super().__init__()
            self.model = Decoder()
            self.lm_head = linear(case.hidden, case.vocabulary)

        def forward(self, ids, cos, sin):
            x = self.model.embed_tokens(ids)
            for layer in self.model.layers:
                x = layer(x, cos, sin)
            return self.lm_head(self.model.norm(x))

    model = Model()
    weights = {}
    for path in sorted((folder / "export").glob("*.safetensors")):
        weights.update(load_file(path))
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    model.to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if arguments["dtype"] == "bfloat16" \
        else MixedPrecisionPolicy()
    for layer in model.model.layers:
        if arguments["compiles"]:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIMIZER["lr"], betas=OPTIMIZER["betas"], eps=EPSILON,
                                  weight_decay=OPTIMIZER["weight_decay"], fused=is_cuda)

    def loss_of(logits, labels):
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    if arguments["compiles"]:
        loss_of = torch.compile(loss_of)
    steps = torch.arange(case.sequence, device=device, dtype=torch.float32)
    frequencies = case.rope_base ** (-torch.arange(0, case.head_dim, 2, device=device, dtype=torch.float32) / case.head_dim)
    angles = torch.outer(steps, frequencies).repeat(1, 2).unsqueeze(1)  # [S, 1, D]
    dtype = torch.bfloat16 if arguments["dtype"] == "bfloat16" else torch.float32
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    tokens = torch.frombuffer(bytearray((folder / "tokens.bin").read_bytes()), dtype=torch.int32).long()
    results, before = [], time.perf_counter()
    for step in range(arguments["steps"]):
        first = (step * num_ranks + rank) * case.microbatch
        rows = torch.stack([tokens[i * case.sequence : (i + 1) * case.sequence + 1] for i in range(first, first + case.microbatch)])
        rows = rows.to(device)
        loss = loss_of(model(rows[:, :-1], cos, sin), rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().double()
        dist.all_reduce(mean)
        value = mean.item() / num_ranks  # waits for the step, as ours does for its log
        now = time.perf_counter()
        results.append({"loss": value, "step_seconds": now - before})
        before = now
    if rank == 0:
        memory = torch.cuda.max_memory_allocated() / 2**30 if is_cuda else 0.0
        (folder / "peer.json").write_text(json.dumps({"steps": results, "allocated_gib": memory, "torch": torch.__version__}))
    dist.destroy_process_group()
    # Without the interpreter's end: now and then a thread of torch still runs there, and the process aborts.
    sys.stdout.flush()
    os._exit(0)


def run_peer(folder, case, dtype, options):
    arguments = {"folder": str(folder), "case": list(case), "dtype": dtype, "device": options.device, "steps": options.steps,
                 "compiles": options.compile and options.device == "cuda" and dtype == "bfloat16"}
    path = folder / "peer.arguments.json"
    path.write_text(json.dumps(arguments))
    result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks),
                             __file__, "--peer", path], capture_output=True, text=True, errors="replace",
                            env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1", **os.environ})
    if result.returncode:
        raise RuntimeError(f"torch's ended with exit code {result.returncode}: {result.stderr[-4000:]}")
    return json.loads((folder / "peer.json").read_text())


# Both ---------------------------------------------------------------------------------------------------------------------


def compare(dtype, options):
    """Prints; the largest relative difference of losses."""
    case = CASES[options.device][dtype]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", case, case.microbatch * options.ranks * options.steps)
        config = configuration(case, dtype, folder, options, num_ranks=options.ranks)
        run_ours(folder, config, options, "trainer.schedule.total_steps=1", "optimizer.lr=0")  # exports the weights
        source = f"trainer.model_stage_factory.source_checkpoint={folder / 'export'}"
        rest = f"export_to={folder / 'trained'}"
        ours = run_ours(folder, config, options, source, rest, until=options.steps)
        theirs = run_peer(folder, case, dtype, options)
    gaps = [abs(mine["loss"] - other["loss"]) / other["loss"] for mine, other in zip(ours, theirs["steps"], strict=True)]
    print(f"\n{dtype}: {case}, {options.ranks} ranks, torch {theirs['torch']}\n\n| step | ours | fully_shard | apart |\n|---|---|---|---|")
    for step, (mine, other) in enumerate(zip(ours, theirs["steps"])):
        print(f"| {step + 1} | {mine['loss']:.6f} | {other['loss']:.6f} | {gaps[step]:.1e} |")
    print("\n| | ms a step (p10..p90) | tokens/s of all ranks |\n|---|---|---|")
    tokens = case.microbatch * case.sequence * options.ranks
    for title, steps in (("ours", ours), (f"fully_shard, {theirs['allocated_gib']:.1f} GiB", theirs["steps"])):
        seconds = [step["step_seconds"] for step in steps[WARM_UP:]]
        deciles = statistics.quantiles(seconds, n=10, method="inclusive")
        median = statistics.median(seconds)
        print(f"| {title} | {1e3 * median:.1f} ({1e3 * deciles[0]:.1f}..{1e3 * deciles[-1]:.1f}) | {tokens / median:,.0f} |", flush=True)
    return max(gaps)


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(json.loads(Path(sys.argv[2]).read_text()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="float32,bfloat16")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    gaps = {dtype: compare(dtype, options) for dtype in options.cases.split(",")}
    limit = tolerance("fp32 training loss")
    print(f"\nlargest difference of losses: {', '.join(f'{dtype} {gap:.1e}' for dtype, gap in gaps.items())}; float32 may have {limit:g}")
    sys.exit(gaps.get("float32", 0.0) > limit)


if __name__ == "__main__":
    main()
