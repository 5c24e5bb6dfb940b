// Tensor parallelism of blocks (Shoeybi et al., Megatron-LM, arXiv:1909.08053), with activations sharded by sequence
// between them (Korthikanti et al., arXiv:2205.05198).
//
//   weights                          placement    gradient
//   q, k, v, gate, up; their biases  Shard(0)     Shard(0)        column-parallel: a rank has some heads, some features
//   o, down                          Shard(1)     Shard(1)        row-parallel
//   biases of o, down                Replicate    Partial(sum)    added once, after the sum over ranks
//   norms of queries and keys        Replicate    Partial(sum)    each rank has different heads
//   sinks                            Shard(0)     Shard(0)        one per head
//   norms between blocks             Replicate    Partial(sum)    each rank has different positions
//   embedding, head                  Shard(0)     Shard(0)        each split of the vocabulary, unevenly
//
// Example
//   const DeviceMesh& dense = context.mesh(MeshDomain::kDense);
//   parallelize_tensor_parallel(*layer->self_attn, dense);
//   parallelize_tensor_parallel(*layer->mlp, dense);
//   parallelize_sequence_parallel(*layer->input_layernorm, dense);
//
// All functions are local; call them on the meta device, before FSDP. `axis` is an axis of the mesh of dense
// parameters. They throw ConfigError for sizes that cannot be sharded as described below.
#pragma once

#include <string>

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// The number of ranks must divide the number of key and value heads.
void parallelize_tensor_parallel(GroupedQueryAttention& attention, const DeviceMesh& mesh,
                                 const std::string& axis = "tp");
// The features of the inner width may be sharded unevenly.
void parallelize_tensor_parallel(SwiGLU& feed_forward, const DeviceMesh& mesh, const std::string& axis = "tp");
// Each rank must get rows of at least one split of the vocabulary. Call both functions if the embedding and the head
// are tied.
void parallelize_tensor_parallel(SplitTokenEmbeddings& embeddings, const DeviceMesh& mesh,
                                 const std::string& axis = "tp");
void parallelize_tensor_parallel(LanguageModellingHead& head, const DeviceMesh& mesh, const std::string& axis = "tp");

// For a norm or a dropout whose input is a shard of the sequence, as between blocks.
void parallelize_sequence_parallel(RMSNorm& norm, const DeviceMesh& mesh, const std::string& axis = "tp");
void parallelize_sequence_parallel(Dropout& dropout, const DeviceMesh& mesh, const std::string& axis = "tp");

}  // namespace d9d
