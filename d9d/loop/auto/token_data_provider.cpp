#include "d9d/loop/auto/token_data_provider.h"

#include <utility>

namespace d9d {

TokenDataProvider::TokenDataProvider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed)
    : config_(std::move(config)), limits_(limits), base_seed_(base_seed) {}

std::unique_ptr<PackStream<TokenBatch>> TokenDataProvider::build_pack_stream(const DistContext& context,
                                                                             std::optional<std::int64_t> total_steps) {
  const StreamOptions stream{.seed = static_cast<std::uint64_t>(base_seed_), .repeat = total_steps.has_value()};
  return build_token_stream(config_, {.vocabulary_size = limits_.vocabulary_size,
                                      .max_positions = limits_.max_positions,
                                      .stream = on_rank_of(context, stream)});
}

}  // namespace d9d
