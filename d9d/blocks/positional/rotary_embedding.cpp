#include "d9d/blocks/positional/rotary_embedding.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/blocks/positional/rope_tables.h"

namespace d9d {
namespace {

// A buffer that is filled with one of the two tables.
BufferSpec table_spec(const RotaryEmbeddingConfig& config, RopeTable table) {
  const auto fill = [config, table](const at::Tensor& local, const ElementWindow&, RandomStream) {
    const RopeFrequencies frequencies = rope_frequencies({.base = config.base,
                                                          .head_dim = config.head_dim,
                                                          .max_position_ids = config.max_position_ids,
                                                          .scaling = config.scaling});
    local.copy_(rope_table(table, frequencies, config.max_position_ids, config.style, local.scalar_type()));
  };
  return {.shape = {config.max_position_ids, config.head_dim},
          .init = fill,
          .is_persistent = false,
          .follows_dtype = !config.keeps_float32};
}

}  // namespace

RotaryEmbeddingProvider::RotaryEmbeddingProvider(const RotaryEmbeddingConfig& configuration)
    : config(configuration),
      cos_(register_buffer("cos_emb", table_spec(config, RopeTable::kCos))),
      sin_(register_buffer("sin_emb", table_spec(config, RopeTable::kSin))) {}

RotaryTables RotaryEmbeddingProvider::forward(const at::Tensor& position_ids) const {
  if (position_ids.device().is_cpu() && position_ids.numel() > 0) {
    const auto [first, last] = at::aminmax(position_ids);
    D9D_CHECK(first.item<std::int64_t>() >= 0 && last.item<std::int64_t>() < config.max_position_ids, ConfigError,
              "[blocks::rope] expected positions from 0 to below max_position_ids = ", config.max_position_ids,
              ", got positions from ", first.item<std::int64_t>(), " to ", last.item<std::int64_t>(),
              ". Raise max_position_ids or shorten the sequences.");
  }
  return {.cos = at::embedding(cos_->local, position_ids), .sin = at::embedding(sin_->local, position_ids)};
}

}  // namespace d9d
