#include "d9d/loop/language_model/decoder_inputs.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d {

DecoderInputs decoder_inputs(const TokenBatch& batch, const PositionCut& positions,
                             const LanguageModelTaskOptions& options) {
  const auto here = [&](const at::Tensor& x) { return context_parallel_shard(x, /*dim=*/1, positions); };
  const at::Tensor ids = here(batch.input_ids);
  std::optional<at::Tensor> real = real_positions(batch, positions.ranges(batch.input_ids.size(1)), ids.device());
  const std::int64_t num_tokens = real ? real->size(0) : ids.numel();
  if (!options.tells_padding) real.reset();
  return {.input = {ids},
          .shared = {.sequence = {.position_ids = here(batch.position_ids),
                                  .hidden_states_agg_mask = std::nullopt,
                                  .packed = batch.packed,
                                  .real_positions = std::move(real)},
                     .head = {here(batch.labels)}},
          .num_tokens = num_tokens};
}

}  // namespace d9d
