// The default layout of a decoder stage over the ranks of a job, by the degrees of its mesh.
//
//   experts        Shard(0) over ep_shard; cut further, or copied, over ep_replicate
//   all others     cut over tp as parallelism/tensor/parallelize_tensor_parallel.h says; then over dp_cp_shard into one
//                  unit a layer (FSDP); copied over dp_replicate and cp_replicate
//   buffers        on every rank
//   positions      over cp, with keys and values gathered; who feeds the model cuts ids, positions and labels by
//                  context_parallel_shard(). A Dropout of a layer of one's own stands between blocks
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
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

// Local, on the meta device, in the dtype of training and with frozen parameters frozen. `heads` stand on this stage,
// or are null. A unit a layer, one for the embedding, one for the last norm and the heads; tied embeddings join them in
// one that stays gathered. Throws ConfigError that names the degree for pipelines, for tensor parallelism with experts,
// for tensor or context parallelism with other heads than the language-modelling head or with hidden-state snapshots.
void parallelize_decoder(const DistContext& context, PreNormDecoder& decoder,
                         const std::vector<std::shared_ptr<Module>>& heads, const FsdpConfig& fsdp = {});

}  // namespace d9d
