// Tensor parallelism of blocks (Shoeybi et al., Megatron-LM, arXiv:1909.08053), with activations sharded by sequence
// between them (Korthikanti et al., arXiv:2205.05198). Each block declares its plan (d9d/modules/tensor_plan.h):
//
//   weights                          placement    gradient
//   q, k, v, gate, up; their biases  Shard(0)     Shard(0)        column-parallel: a rank has some heads, some features
//   k, v if W does not divide Hkv    Replicate    Partial(sum)    a rank computes the heads that its queries need
//   o, down                          Shard(1)     Shard(1)        row-parallel
//   biases of o, down                Replicate    Partial(sum)    added once, after the sum over ranks
//   norms of queries and keys        Replicate    Partial(sum)    each rank has different heads
//   sinks                            Shard(0)     Shard(0)        one per head
//   norms between blocks             Replicate    Partial(sum)    each rank has different positions
//   embedding, head                  Shard(0)     Shard(0)        each split of the vocabulary, unevenly
//   routers, gates of shared experts Replicate    Partial(sum)    each rank has different tokens
//   experts                          Replicate    Partial(sum)    unless parallelize_expert_parallel() has placed them
//
// Legend   W ranks, Hkv heads of keys and values
//
// Example
//   parallelize_tensor_parallel(*decoder, context.mesh(MeshDomain::kDense));
#pragma once

#include <string>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/modules/module.h"
#include "d9d/parallelism/tensor/tensor_parallel_config.h"

namespace d9d {

// Local; call it on the meta device, after parallelize_expert_parallel() and before FSDP. Carries out the plans of
// `module` and of all modules below; modules without a plan do not change. `axis` is an axis of the mesh of dense
// parameters. Heads and features that its ranks do not divide are cut unevenly, heads as a whole; the last ranks may
// get none. Throws ConfigError if a rank would get no row of any split of a vocabulary. Call it for both the embedding
// and the head if they are tied.
void parallelize_tensor_parallel(Module& module, const DeviceMesh& mesh, const std::string& axis = "tp",
                                 const TensorParallelConfig& config = {});

}  // namespace d9d
