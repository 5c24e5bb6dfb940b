"""Our tensor parallelism, alone or with FSDP, beside torch's (`parallelize_module`, `fully_shard`) on the same GPUs, in one run.

usage: tensor_parallel.py [--model qwen3-1.7b|qwen3-8b|tiny] [--ranks N] [--degree N] [--peers torch,torch_async] [--steps N]
                          [--checkpointing] [--device cuda|cpu] [--programs FOLDER]

Ours is the example program qwen3_dense_pretrain; it also makes the weights, which both load. torch's plan is that of torchtitan:
linears by columns and rows, norms on shards of the sequence, a loss over a split vocabulary; each layer and the loss go through
torch.compile, FSDP2 keeps float32 parameters and computes in bfloat16. torch_async: with async tensor parallelism, which cuts
products into parts beside which copies run. Ours keeps bfloat16 parameters and float32 moments. Both sum gradients over data in
float32, clip to a norm of 1.0 and use AdamW; checkpointing is that of whole layers. Prints Markdown: losses side by side, then
seconds a step by each program's own clock, and its memory. cpu: to try the script.
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


def lay_out(model, mesh):
    """torchtitan's plan of a dense decoder over a mesh of tensor-parallel ranks."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                                   parallelize_module)

    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    with_tables = PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None))
    of_heads = SequenceParallel(sequence_dim=2, use_local_output=True)
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
            "self_attn": with_tables, "mlp": whole, "self_attn.q_norm": of_heads, "self_attn.k_norm": of_heads,
            **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1))})


def peer(arguments):
    """One rank, under torchrun."""
    import torch
    import torch.distributed as dist
    import torch_decoder
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import loss_parallel

    folder, case = Path(arguments["folder"]), Case(*arguments["case"])
    device = peers.peer_device(arguments)
    degree = arguments["degree"]
    mesh = init_device_mesh(device.type, (dist.get_world_size() // degree, degree), mesh_dim_names=("dp", "tp"))
    if arguments["is_async"]:
        import torch._inductor.config
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh["tp"].get_group().group_name)
    model = torch_decoder.build_decoder(case)
    torch_decoder.load_export(model, folder / "export")
    model.to(device)
    compiles = device.type == "cuda"
    dtype = torch.bfloat16 if compiles else torch.float32
    lay_out(model, mesh["tp"])
    shards = mesh["dp"].size() > 1
    if not shards:
        model.to(dtype)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.model.layers):
        if arguments["checkpointing"]:
            layer = model.model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        if compiles:
            layer.compile()
        if shards:
            fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    if shards:
        fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peers.OPTIMIZER["lr"], betas=peers.OPTIMIZER["betas"],
                                  eps=peers.EPSILON, weight_decay=peers.OPTIMIZER["weight_decay"], fused=compiles)
    loss_of = torch.compile(torch_decoder.mean_loss) if compiles else torch_decoder.mean_loss
    cos, sin = torch_decoder.rotary_tables(case, device, dtype)
    tokens, results, before = torch_decoder.read_tokens(folder), [], time.perf_counter()
    groups, group = mesh["dp"].size(), mesh["dp"].get_local_rank()
    for step in range(arguments["steps"]):
        rows = torch_decoder.token_rows(tokens, case, (step * groups + group) * case.microbatch, case.microbatch).to(device)
        with loss_parallel():
            loss = loss_of(model(rows[:, :-1], cos, sin), rows[:, 1:])
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach()
        mean = (mean.full_tensor() if hasattr(mean, "full_tensor") else mean).double()
        dist.all_reduce(mean, group=mesh["dp"].get_group())
        value = mean.item() / groups  # waits for the step, as ours does for its log
        now = time.perf_counter()
        results.append({"loss": value, "step_seconds": now - before})
        before = now
    if dist.get_rank() == 0:
        memory = torch.cuda.max_memory_allocated() / 2**30 if compiles else 0.0
        (folder / "peer.json").write_text(json.dumps({"steps": results, "allocated_gib": memory, "torch": torch.__version__}))
    peers.leave_peer()


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(json.loads(Path(sys.argv[2]).read_text()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-1.7b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--degree", type=int, default=2, help="tensor-parallel ranks; the others shard parameters")
    parser.add_argument("--peers", default="torch,torch_async")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--programs", type=Path, default=peers.REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    case, groups = MODELS[options.model], options.ranks // options.degree
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = case.microbatch * groups  # of a step
        peers.write_tokens(folder / "tokens.bin", case, samples * options.steps)
        mesh = {"tensor_parallel": options.degree, "data_parallel_shard": groups}
        config = peers.configuration(case, dtype, folder, options, mesh, samples)
        config["model_provider"]["checkpointing"] = options.checkpointing
        peers.run_ours(folder, config, options, "trainer.schedule.total_steps=1", "optimizer.lr=0")  # exports the weights
        source = f"trainer.model_stage_factory.source_checkpoint={folder / 'export'}"
        ours = peers.run_ours(folder, config, options, source, f"export_to={folder / 'trained'}", until=options.steps)
        theirs = {}
        for title in options.peers.split(","):
            try:
                theirs[title] = peers.run_peer(__file__, folder, {"case": list(case), "is_async": title == "torch_async",
                                                                  "degree": options.degree,
                                                                  "checkpointing": options.checkpointing}, options)
            except RuntimeError as error:
                print(f"{title}: {error}", file=sys.stderr, flush=True)
    print(f"\n{options.model}: {case}, {options.ranks} ranks, {options.degree} tensor-parallel, checkpointing {options.checkpointing}\n")
    for title, result in theirs.items():
        gaps = peers.gaps_of_losses(ours, result["steps"])
        print(f"largest difference of losses from {title}: {peers.largest(gaps):.1e}")
    print("\n| | ms a step (p10..p90) | tokens/s of all ranks |\n|---|---|---|")
    print(peers.row_of_times("ours", ours, samples * case.sequence)[0], flush=True)
    for title, result in theirs.items():
        print(peers.row_of_times(f"{title} {result['torch']}, {result['allocated_gib']:.1f} GiB", result["steps"],
                                 samples * case.sequence)[0], flush=True)
    sys.exit(any(math.isnan(step["loss"]) for step in ours))


if __name__ == "__main__":
    main()
