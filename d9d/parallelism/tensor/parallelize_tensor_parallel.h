// Blocks over tensor-parallel ranks (Shoeybi et al., Megatron-LM, arXiv:1909.08053), with shards of the sequence
// between them (Korthikanti et al., arXiv:2205.05198).
//
//   weights                          placement    gradient
//   q, k, v, gate, up; their biases  Shard(0)     Shard(0)        columns: a rank has some heads, some features
//   o, down                          Shard(1)     Shard(1)        rows
//   norms of queries and keys        Replicate    Partial(sum)    each rank has other heads
//   sinks                            Shard(0)     Shard(0)        one a head
//   norms between blocks             Replicate    Partial(sum)    each rank has other positions
//   embedding, head                  Shard(0)     Shard(0)        each split of the vocabulary, unevenly
//
// Example
//   const DeviceMesh& dense = context.mesh(MeshDomain::kDense);
//   parallelize_tensor_parallel(*layer->self_attn, dense);
//   parallelize_tensor_parallel(*layer->mlp, dense);
//   parallelize_sequence_parallel(*layer->input_layernorm, dense);
//
// All are local, on the meta device, before FSDP; `axis` is of the mesh of dense parameters. Throw ConfigError where
// the ranks do not divide what they must.
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

// The ranks divide the key and value heads.
void parallelize_tensor_parallel(GroupedQueryAttention& attention, const DeviceMesh& mesh,
                                 const std::string& axis = "tp");
// Features of the inner width are cut unevenly where they must. A bias of down_proj is refused.
void parallelize_tensor_parallel(SwiGLU& feed_forward, const DeviceMesh& mesh, const std::string& axis = "tp");
// Each rank gets rows of some split. An embedding and a head that is tied to it are both given.
void parallelize_tensor_parallel(SplitTokenEmbeddings& embeddings, const DeviceMesh& mesh,
                                 const std::string& axis = "tp");
void parallelize_tensor_parallel(LanguageModellingHead& head, const DeviceMesh& mesh, const std::string& axis = "tp");

// A norm, a dropout whose input is a shard of the sequence, as it is between blocks.
void parallelize_sequence_parallel(RMSNorm& norm, const DeviceMesh& mesh, const std::string& axis = "tp");
void parallelize_sequence_parallel(Dropout& dropout, const DeviceMesh& mesh, const std::string& axis = "tp");

}  // namespace d9d
