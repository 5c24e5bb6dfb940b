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
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import peers
from peers import Case

CASES = {"cuda": {"float32": Case(6, 1024, 16, 8, 3072, 32768, 1024, 2), "bfloat16": Case(28, 2048, 16, 8, 6144, 151936, 4096, 2)},
         "cpu": {"float32": Case(2, 64, 4, 2, 96, 512, 32, 2, 16), "bfloat16": Case(2, 64, 4, 2, 96, 512, 32, 2, 16)}}


def peer(arguments):
    """One rank, under torchrun."""
    import torch
    import torch.distributed as dist
    import torch_decoder
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    folder, case = Path(arguments["folder"]), Case(*arguments["case"])
    device = peers.peer_device(arguments)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    model = torch_decoder.build_decoder(case)
    torch_decoder.load_export(model, folder / "export")
    model.to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if arguments["dtype"] == "bfloat16" \
        else MixedPrecisionPolicy()
    for layer in model.model.layers:
        if arguments["compiles"]:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peers.OPTIMIZER["lr"], betas=peers.OPTIMIZER["betas"],
                                  eps=peers.EPSILON, weight_decay=peers.OPTIMIZER["weight_decay"], fused=device.type == "cuda")
    loss_of = torch.compile(torch_decoder.mean_loss) if arguments["compiles"] else torch_decoder.mean_loss
    cos, sin = torch_decoder.rotary_tables(case, device, torch.bfloat16 if arguments["dtype"] == "bfloat16" else torch.float32)
    tokens, results, before = torch_decoder.read_tokens(folder), [], time.perf_counter()
    for step in range(arguments["steps"]):
        first = (step * num_ranks + rank) * case.microbatch
        rows = torch_decoder.token_rows(tokens, case, first, case.microbatch).to(device)
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
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        (folder / "peer.json").write_text(json.dumps({"steps": results, "allocated_gib": memory, "torch": torch.__version__}))
    peers.leave_peer()


def compare(dtype, options):
    """Prints; the largest relative difference of losses."""
    case = CASES[options.device][dtype]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = case.microbatch * options.ranks  # of a step
        peers.write_tokens(folder / "tokens.bin", case, samples * options.steps)
        config = peers.configuration(case, dtype, folder, options, {"data_parallel_shard": options.ranks}, samples)
        peers.run_ours(folder, config, options, "trainer.schedule.total_steps=1", "optimizer.lr=0")  # exports the weights
        source = f"trainer.model_stage_factory.source_checkpoint={folder / 'export'}"
        ours = peers.run_ours(folder, config, options, source, f"export_to={folder / 'trained'}", until=options.steps)
        compiles = options.compile and options.device == "cuda" and dtype == "bfloat16"
        theirs = peers.run_peer(__file__, folder, {"case": list(case), "dtype": dtype, "compiles": compiles}, options)
    gaps = peers.gaps_of_losses(ours, theirs["steps"])
    print(f"\n{dtype}: {case}, {options.ranks} ranks, torch {theirs['torch']}\n\n| step | ours | fully_shard | apart |\n|---|---|---|---|")
    for step, (mine, other) in enumerate(zip(ours, theirs["steps"])):
        print(f"| {step + 1} | {mine['loss']:.6f} | {other['loss']:.6f} | {gaps[step]:.1e} |")
    print("\n| | ms a step (p10..p90) | tokens/s of all ranks |\n|---|---|---|")
    for title, steps in (("ours", ours), (f"fully_shard, {theirs['allocated_gib']:.1f} GiB", theirs["steps"])):
        print(peers.row_of_times(title, steps, samples * case.sequence)[0], flush=True)
    return peers.largest(gaps)


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(json.loads(Path(sys.argv[2]).read_text()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="float32,bfloat16")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--programs", type=Path, default=peers.REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    gaps = {dtype: compare(dtype, options) for dtype in options.cases.split(",")}
    limit = peers.tolerance("fp32 training loss")
    print(f"\nlargest difference of losses: {', '.join(f'{dtype} {gap:.1e}' for dtype, gap in gaps.items())}; float32 may have {limit:g}")
    sys.exit(not gaps.get("float32", 0.0) <= limit)


if __name__ == "__main__":
    main()
