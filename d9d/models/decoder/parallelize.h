// The default layout of a decoder stage over the ranks of a job, by the degrees of its mesh.
//
//   experts        Shard(0) over ep_shard; sharded further, or replicated, over ep_replicate. Ranks of tp are
//                  among both, with other tokens. Without expert parallelism as all others, but replicated over tp
//   all others     sharded over tp as parallelism/tensor/parallelize_tensor_parallel.h describes, then over dp_cp_shard
//                  with one FSDP unit for each layer; replicated over dp_replicate and cp_replicate
//   buffers        replicated
//   positions      cut over cp by context_parallel_cut(), with attention as `of_context` says; the caller cuts ids,
//                  positions and labels with context_parallel_shard(). A Dropout of a user's own layer must be between
//                  blocks
//
// Example
//   auto model = make_decoder_for_causal_lm(make_module<Qwen3MoEModel>(parameters, options));    // on meta
//   parallelize_decoder(context, *backbone, {model->head.shared()});
//   model->materialize(context.device());
#pragma once

#include <memory>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/parallelism/context/context_parallel_config.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"
#include "d9d/parallelism/tensor/tensor_parallel_config.h"

namespace d9d {

// Local, on the meta device, with parameters in the dtype of training and frozen ones already frozen. `heads` belong to
// this stage; entries may be null. Makes one FSDP unit for each layer, one for the embedding, and one for the last norm
// and the heads; if embeddings are tied, the latter two are one unit that stays gathered. With several stages, the
// first and the last then have the embedding, in a unit of its own. Throws ConfigError that names the degree for tensor
// parallelism of layers and heads without a tensor_plan().
void parallelize_decoder(const DistContext& context, PreNormDecoder& decoder,
                         const std::vector<std::shared_ptr<Module>>& heads, const FsdpConfig& fsdp = {},
                         const TensorParallelConfig& tensor = {}, const ContextParallelConfig& of_context = {});

}  // namespace d9d
