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

import peers
import sharing_ranks


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
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    case, device = peers.Case(*arguments["case"]), peers.peer_device(arguments)
    degree, compiles = arguments["degree"], device.type == "cuda"
    mesh = init_device_mesh(device.type, (dist.get_world_size() // degree, degree), mesh_dim_names=("dp", "tp"))
    if arguments["title"] == "torch_async":
        import torch._inductor.config
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh["tp"].get_group().group_name)
    model = sharing_ranks.build_peer(arguments, case, device)
    dtype = torch.bfloat16 if compiles else torch.float32
    lay_out(model, mesh["tp"])
    shards = mesh["dp"].size() > 1
    if not shards:
        model.to(dtype)
    sharing_ranks.prepare_layers(model, arguments, mesh["dp"] if shards else None, dtype, compiles)
    loss_of = torch.compile(torch_decoder.mean_loss) if compiles else torch_decoder.mean_loss

    def loss_of_batch(model, ids, labels, cos, sin):
        with loss_parallel():
            loss = loss_of(model(ids, cos, sin), labels)
            loss.backward()
        return loss

    sharing_ranks.train_peer(model, arguments, case, device, dtype, mesh["dp"], loss_of_batch, mesh["dp"])


if __name__ == "__main__":
    sharing_ranks.main(__file__, __doc__, "tensor_parallel", "torch,torch_async", peer)
