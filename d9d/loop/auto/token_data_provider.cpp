#include "d9d/loop/auto/token_data_provider.h"

#include <utility>

namespace d9d {

TokenDataProvider::TokenDataProvider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed)
    : config_(std::move(config)), limits_(limits), base_seed_(base_seed) {}

std::unique_ptr<PackStream<TokenBatch>> TokenDataProvider::build_pack_stream(const DistContext& context,
                                                                             std::optional<std::int64_t> total_steps) {
  const StreamOptions stream{.seed = static_cast<std::uint64_t>(base_seed_), .repeat = total_steps.has_value()};
  std::unique_ptr<PackStream<TokenBatch>> built;
  // Text is tokenised by the first rank of a machine; the others find it.
  context.local_main_process_first([&] {
    built = build_token_stream(config_, {.vocabulary_size = limits_.vocabulary_size,
                                         .max_positions = limits_.max_positions,
                                         .shows_progress = context.is_local_main_process(),
                                         .stream = on_rank_of(context, stream)});
  });
  return built;
}

}  // namespace d9d
