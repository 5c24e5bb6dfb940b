"""Our context parallelism beside torch's (`context_parallel` with `fully_shard`) on the same GPUs, in one run.

usage: context_parallel.py [--model qwen3-1.7b|qwen3-8b|tiny] [--ranks N] [--degree N] [--peers torch,torch_alltoall] [--steps N]
                           [--sequence N] [--sequences N] [--layers N] [--checkpointing] [--device cuda|cpu]
                           [--programs FOLDER]

torch's ranks cut sequences head and tail, as ours, and shard parameters over all ranks (FSDP2: float32 parameters, products in
bfloat16), as torchtitan lays a dense decoder out; each layer goes through torch.compile. `torch` gathers keys and values,
`torch_alltoall` passes them round; heads of keys are repeated before attention. Ours keeps bfloat16 parameters and float32 moments. Both sum
gradients in float32, clip to a norm of 1.0 and use AdamW; checkpointing is that of whole layers. Prints Markdown: losses side by side,
then seconds a step by each program's own clock, and its memory.
"""

import peers
import sharing_ranks


def peer(arguments):
    """One rank, under torchrun."""
    import torch
    import torch.distributed as dist
    import torch_decoder
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    case, device = peers.Case(*arguments["case"]), peers.peer_device(arguments)
    degree, compiles = arguments["degree"], device.type == "cuda"
    mesh = init_device_mesh(device.type, (dist.get_world_size() // degree, degree), mesh_dim_names=("dp", "cp"))
    everyone = mesh[("dp", "cp")]._flatten("dp_cp")
    set_rotate_method("alltoall" if arguments["title"] == "torch_alltoall" else "allgather")
    torch_decoder.REPEATS_KEYS = True
    model = sharing_ranks.build_peer(arguments, case, device)
    dtype = torch.bfloat16 if compiles else torch.float32
    sharing_ranks.prepare_layers(model, arguments, everyone, dtype, compiles)
    loss_of = torch.compile(torch_decoder.mean_loss) if compiles else torch_decoder.mean_loss

    def loss_of_batch(model, ids, labels, cos, sin):
        buffers = [ids, labels, cos, sin]
        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        with context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1, 0, 0],
                              no_restore_buffers=set(buffers)), sdpa_kernel(backends):
            loss = loss_of(model(ids, cos, sin), labels)
            loss.backward()
        return loss

    sharing_ranks.train_peer(model, arguments, case, device, dtype, mesh["dp"], loss_of_batch, everyone)


if __name__ == "__main__":
    sharing_ranks.main(__file__, __doc__, "context_parallel_shard", "torch,torch_alltoall", peer)
