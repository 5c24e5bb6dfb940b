"""Our pipelines beside torch's (`torch.distributed.pipelining`): the same dense model from the same weights on the same tokens, in
one run, schedule by schedule.

usage: pipelines.py [--case float32|bfloat16] [--schedules NAME,...] [--ranks N] [--microbatches N] [--steps N] [--no-compile]
                    [--device cuda|cpu] [--programs FOLDER]

Ours is the example program qwen3_dense_pretrain; it also makes the weights, which both load. float32: everything in float32, so
that the first step's gradients, as AdamW's first moments hold them, must agree; exit code 1 where one differs by more than "fp32"
(on GPUs "fp32 on GPUs") of tests/support/tolerances.h, relative to its tensor's largest, or a loss by more than "fp32 training
loss". bfloat16: a model of 1.7B parameters for the time of a step; both keep bfloat16 parameters, torch bfloat16 moments too, and
its layers and loss go through torch.compile. Stages have the same layers on both sides. They take turns, schedule by schedule.
Prints Markdown: how far losses and gradients are apart, then seconds a step by each program's own clock. cpu: a small model, one
thread a rank.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import peers
from peers import Case

CASES = {"cuda": {"float32": Case(8, 1024, 16, 8, 3072, 32768, 1024, 1), "bfloat16": Case(28, 2048, 16, 8, 6144, 151936, 4096, 1)},
         "cpu": {"float32": Case(8, 64, 4, 2, 96, 512, 32, 1, 16)}}
# Ours, the class of torch's, stages a rank.
SCHEDULES = {
    "gpipe": ({"schedule": "gpipe"}, "ScheduleGPipe", 1),
    "1f1b": ({"schedule": "1f1b", "num_stages_per_rank": 1, "zero_bubble": False}, "Schedule1F1B", 1),
    "looped_bfs": ({"schedule": "looped_bfs", "num_stages_per_rank": 2}, "ScheduleLoopedBFS", 2),
    "interleaved": ({"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": False}, "ScheduleInterleaved1F1B", 2),
    "interleaved_zero_bubble": ({"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": True},
                                "ScheduleInterleavedZeroBubble", 2),
    "zero_bubble_v": ({"schedule": "zero_bubble_v"}, "ScheduleZBVZeroBubble", 2),
    "dual_pipe_v": ({"schedule": "dual_pipe_v"}, "ScheduleDualPipeV", 2),
}
V_SHAPED = ("zero_bubble_v", "dual_pipe_v")
BETA = peers.OPTIMIZER["betas"][0]


def gradients_of_first_step(moments):
    return {name: moment.double() / (1 - BETA) for name, moment in moments.items()}


# torch's ------------------------------------------------------------------------------------------------------------------


def peer(arguments):
    """One rank, under torchrun."""
    import torch
    import torch.distributed as dist
    import torch_decoder
    from safetensors.torch import save_file
    from torch import nn
    from torch.distributed import pipelining

    folder, case = Path(arguments["folder"]), Case(*arguments["case"])
    device = peers.peer_device(arguments)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    _, class_name, per_rank = SCHEDULES[arguments["schedule"]]
    num_stages, num_microbatches = per_rank * num_ranks, arguments["microbatches"]
    dtype = getattr(torch, arguments["dtype"])
    model = torch_decoder.build_decoder(case)
    torch_decoder.load_export(model, folder / "export", dtype)
    model.to(dtype)
    cos, sin = torch_decoder.rotary_tables(case, device, dtype)

    class Stage(nn.Module):
        def __init__(self, index):
            super().__init__()
            layers, more = divmod(case.layers, num_stages)
            first = index * layers + min(index, more)
            self.embed_tokens = model.model.embed_tokens if index == 0 else None
            self.layers = nn.ModuleDict({str(i): model.model.layers[i] for i in range(first, first + layers + (index < more))})
            self.norm, self.lm_head = (model.model.norm, model.lm_head) if index == num_stages - 1 else (None, None)
            for layer in self.layers.values():
                if arguments["compiles"]:
                    layer.compile()

        def forward(self, x):
            if self.embed_tokens is not None:
                x = self.embed_tokens(x)
            for layer in self.layers.values():
                x = layer(x, cos, sin)
            return x if self.lm_head is None else self.lm_head(self.norm(x))

    is_v = arguments["schedule"] in V_SHAPED
    indices = [rank, num_stages - 1 - rank] if is_v else [rank + i * num_ranks for i in range(per_rank)]
    modules = [Stage(index).to(device) for index in indices]
    stages = [pipelining.PipelineStage(module, index, num_stages, device) for module, index in zip(modules, indices)]
    if device.type == "cpu":  # these messages prepare NCCL's communicators; in a V a rank sends itself one, which Gloo refuses
        for stage in stages:
            stage._get_init_p2p_neighbors_ops = list
    loss_of = torch.compile(torch_decoder.mean_loss) if arguments["compiles"] else torch_decoder.mean_loss
    schedule = getattr(pipelining, class_name)(stages if per_rank > 1 else stages[0], num_microbatches, loss_fn=loss_of)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=peers.OPTIMIZER["lr"], betas=peers.OPTIMIZER["betas"], eps=peers.EPSILON,
                                  weight_decay=peers.OPTIMIZER["weight_decay"], fused=device.type == "cuda")
    samples = case.microbatch * num_microbatches
    tokens, results, before = torch_decoder.read_tokens(folder), [], time.perf_counter()
    for step in range(arguments["steps"]):
        rows = torch_decoder.token_rows(tokens, case, step * samples, samples).to(device)
        losses = []
        inputs = (rows[:, :-1].contiguous(),) if 0 in indices else ()
        ends = {"target": rows[:, 1:].contiguous(), "losses": losses} if num_stages - 1 in indices else {}
        schedule.step(*inputs, **ends)
        squares = torch.stack([parameter.grad.float().square().sum() for parameter in parameters]).sum()
        dist.all_reduce(squares)
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, squares.sqrt())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = torch.stack(losses).detach().double().mean() if losses else torch.zeros((), dtype=torch.double, device=device)
        dist.all_reduce(mean)
        value = mean.item()  # waits for the step, as ours does for its log
        now = time.perf_counter()
        results.append({"loss": value, "step_seconds": now - before})
        if step == 0:
            moments = {names[id(parameter)]: optimizer.state[parameter]["exp_avg"].cpu() for parameter in parameters}
            save_file(moments, folder / f"moments-{rank}.safetensors")
            now = time.perf_counter()
        before = now
    if rank == 0:
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        (folder / "peer.json").write_text(json.dumps({"steps": results, "allocated_gib": memory, "torch": torch.__version__}))
    peers.leave_peer()


# Both ---------------------------------------------------------------------------------------------------------------------


def our_moments(save):
    """AdamW's first moments of a checkpoint, by the names of transformers."""
    from safetensors.torch import load_file

    result = {}
    for path in save.glob("rank-*.safetensors"):
        for entry, tensor in load_file(path).items():
            name = entry.partition("@")[0].removeprefix("optimizer.").removesuffix(".exp_avg")
            if entry.startswith("optimizer.") and ".exp_avg@" in entry:
                result[name.replace("head.lm_head.all", "lm_head").replace("token_embedding.all.", "")] = tensor
    return result


def gap_of_gradients(folder):
    """The largest difference of a gradient's elements, relative to the largest element of its tensor."""
    from safetensors.torch import load_file

    theirs = {}
    for path in folder.glob("moments-*.safetensors"):
        theirs.update(load_file(path))
    ours = gradients_of_first_step(our_moments(next((folder / "saves").glob("save-*"))))
    theirs = gradients_of_first_step(theirs)
    if set(ours) != set(theirs):
        raise RuntimeError(f"expected the same parameters, got {sorted(set(ours) ^ set(theirs))} on one side only")
    return peers.largest(((ours[name] - other).abs().max() / other.abs().max()).item() for name, other in theirs.items())


def compare(name, case, options, folder):
    """A row of each table, the gap of gradients, that of losses."""
    samples = case.microbatch * options.microbatches
    ours_schedule = {"schedule": SCHEDULES[name][0]}
    config = peers.configuration(case, options.case, folder, options, {"pipeline_parallel": options.ranks}, samples)
    config["trainer"]["pipelining"] = ours_schedule
    source = f"trainer.model_stage_factory.source_checkpoint={folder / 'export'}"
    shutil.rmtree(folder / "saves", ignore_errors=True)
    if options.case == "float32":
        saves = f'trainer.checkpointing={{"save_dir": "{folder / "saves"}", "period_steps": "last_step"}}'
        peers.run_ours(folder, config, options, "trainer.schedule.total_steps=1", source, saves, f"export_to={folder / 'first'}")
        shutil.rmtree(folder / "first")
    ours = peers.run_ours(folder, config, options, source, f"export_to={folder / 'trained'}", until=options.steps)
    shutil.rmtree(folder / "trained", ignore_errors=True)
    compiles = options.compile and options.device == "cuda" and options.case == "bfloat16"
    arguments = {"case": list(case), "dtype": options.case, "compiles": compiles, "schedule": name,
                 "microbatches": options.microbatches}
    theirs = peers.run_peer(__file__, folder, arguments, options)
    gap_of_losses = peers.largest(peers.gaps_of_losses(ours, theirs["steps"]))
    gradients = gap_of_gradients(folder) if options.case == "float32" else None
    tokens = samples * case.sequence
    first, mine = peers.row_of_times(f"{name}, ours", ours, tokens)
    second, other = peers.row_of_times(f"{name}, torch {theirs['torch']}, {theirs['allocated_gib']:.1f} GiB", theirs["steps"], tokens)
    print(f"{first} {other / mine:.2f} | {gap_of_losses:.1e} | {'' if gradients is None else f'{gradients:.1e}'} |\n{second} | | |", flush=True)
    return gradients or 0.0, gap_of_losses


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(json.loads(Path(sys.argv[2]).read_text()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--programs", type=Path, default=peers.REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    case = CASES[options.device][options.case]
    print(f"{options.case}: {case}, {options.ranks} ranks, {options.microbatches} microbatches a step\n\n"
          "| | ms a step (p10..p90) | tokens/s of all ranks | torch's time over ours | losses apart | gradients apart |\n"
          "|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peers.write_tokens(folder / "tokens.bin", case, case.microbatch * options.microbatches * options.steps)
        config = peers.configuration(case, options.case, folder, options, {}, case.microbatch)
        peers.run_ours(folder, config, options, "trainer.schedule.total_steps=1", "optimizer.lr=0")  # exports the weights
        gaps = [compare(schedule, case, options, folder) for schedule in options.schedules.split(",")]
    of_gradients, of_losses = (peers.largest(column) for column in zip(*gaps))
    if options.case == "float32":
        equal = peers.tolerance("fp32 on GPUs" if options.device == "cuda" else "fp32")
        sys.exit(not (of_gradients <= equal and of_losses <= peers.tolerance("fp32 training loss")))


if __name__ == "__main__":
    main()
