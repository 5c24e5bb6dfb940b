"""What comparisons of ranks that share microbatches with torch have in common (tensor_parallel.py, context_parallel.py): the
example program qwen3_dense_pretrain, which also makes the weights, beside a script of torch's under torchrun.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import peers
from peers import Case

MODELS = {"qwen3-1.7b": Case(28, 2048, 16, 8, 6144, 151936, 4096, 2), "qwen3-8b": Case(36, 4096, 32, 8, 12288, 151936, 8192, 1),
          "tiny": Case(2, 64, 4, 2, 96, 512, 32, 2, 16)}


def build_peer(arguments, case, device):
    """torch's decoder with the exported weights, in float32."""
    import torch_decoder

    model = torch_decoder.build_decoder(case)
    torch_decoder.load_export(model, Path(arguments["folder"]) / "export")
    return model.to(device)


def prepare_layers(model, arguments, mesh, dtype, compiles):
    """Checkpoints, compiles and shards the layers; mesh: of the ranks that shard, or None."""
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.model.layers):
        if arguments["checkpointing"]:
            layer = model.model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        if compiles:
            layer.compile()
        if mesh:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    if mesh:
        fully_shard(model, mesh=mesh, mp_policy=policy)


def train_peer(model, arguments, case, device, dtype, mesh, loss_of_batch, all_ranks):
    """Steps of AdamW. mesh: of the ranks with other samples. loss_of_batch: (model, ids, labels, cos, sin) -> the mean loss,
    after its backward. all_ranks: of the mean of losses."""
    import torch
    import torch.distributed as dist
    import torch_decoder

    folder, is_gpu = Path(arguments["folder"]), device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=peers.OPTIMIZER["lr"], betas=peers.OPTIMIZER["betas"],
                                  eps=peers.EPSILON, weight_decay=peers.OPTIMIZER["weight_decay"], fused=is_gpu)
    tokens, results, before = torch_decoder.read_tokens(folder), [], time.perf_counter()
    groups, group = mesh.size(), mesh.get_local_rank()
    for step in range(arguments["steps"]):
        cos, sin = torch_decoder.rotary_tables(case, device, dtype)
        rows = torch_decoder.token_rows(tokens, case, (step * groups + group) * case.microbatch, case.microbatch).to(device)
        mean = loss_of_batch(model, rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), cos, sin).detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = (mean.full_tensor() if hasattr(mean, "full_tensor") else mean).double()
        dist.all_reduce(mean, group=all_ranks.get_group())
        value = mean.item() / all_ranks.size()  # waits for the step, as ours does for its log
        now = time.perf_counter()
        results.append({"loss": value, "step_seconds": now - before})
        before = now
    if dist.get_rank() == 0:
        memory = torch.cuda.max_memory_allocated() / 2**30 if is_gpu else 0.0
        (folder / "peer.json").write_text(json.dumps({"steps": results, "allocated_gib": memory, "torch": torch.__version__}))
    peers.leave_peer()


def main(script, doc, axis, default_peers, peer):
    """axis: that of the mesh, whose ranks share microbatches; the other ranks shard parameters. Prints Markdown."""
    if sys.argv[1:2] == ["--peer"]:
        return peer(json.loads(Path(sys.argv[2]).read_text()))
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-1.7b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--degree", type=int, default=2, help="ranks that share microbatches")
    parser.add_argument("--peers", default=default_peers)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sequence", type=int, help="tokens of a sequence, other than the model's")
    parser.add_argument("--sequences", type=int, help="of a microbatch, other than the model's")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--programs", type=Path, default=peers.REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    case, groups = MODELS[options.model], options.ranks // options.degree
    case = case._replace(sequence=options.sequence or case.sequence, microbatch=options.sequences or case.microbatch,
                         layers=options.layers or case.layers)
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = case.microbatch * groups  # of a step
        peers.write_tokens(folder / "tokens.bin", case, samples * options.steps)
        mesh = {axis: options.degree, "data_parallel_shard": groups}
        config = peers.configuration(case, dtype, folder, options, mesh, samples)
        config["model_provider"]["checkpointing"] = options.checkpointing
        peers.run_ours(folder, config, options, "trainer.schedule.total_steps=1", "optimizer.lr=0")  # exports the weights
        source = f"trainer.model_stage_factory.source_checkpoint={folder / 'export'}"
        ours = peers.run_ours(folder, config, options, source, f"export_to={folder / 'trained'}", until=options.steps)
        theirs = {}
        for title in filter(None, options.peers.split(",")):
            try:
                theirs[title] = peers.run_peer(script, folder, {"case": list(case), "title": title, "degree": options.degree,
                                                                "checkpointing": options.checkpointing}, options)
            except RuntimeError as error:
                print(f"{title}: {error}", file=sys.stderr, flush=True)
    print(f"\n{options.model}: {case}, {options.ranks} ranks, {axis} {options.degree}, checkpointing {options.checkpointing}\n")
    for title, result in theirs.items():
        gaps = peers.gaps_of_losses(ours, result["steps"])
        print(f"largest difference of losses from {title}: {peers.largest(gaps):.1e}")
    print("\n| | ms a step (p10..p90) | tokens/s of all ranks |\n|---|---|---|")
    print(peers.row_of_times("ours", ours, samples * case.sequence)[0], flush=True)
    for title, result in theirs.items():
        print(peers.row_of_times(f"{title} {result['torch']}, {result['allocated_gib']:.1f} GiB", result["steps"],
                                 samples * case.sequence)[0], flush=True)
    sys.exit(any(math.isnan(step["loss"]) for step in ours))
