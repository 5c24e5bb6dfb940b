// Token sequences from text or from a file of tokens, as "data" of a configuration says. With a budget of steps the
// data is repeated, shuffled anew each time.
//
// Example
//   TokenDataProvider data(config.data, {.vocabulary_size = 256, .max_positions = 1024}, /*base_seed=*/1337);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "d9d/data/token_stream.h"
#include "d9d/loop/control/providers.h"

namespace d9d {

// What the data must fit into.
struct TokenLimits {
  std::int64_t vocabulary_size;
  std::int64_t max_positions;
};

class TokenDataProvider : public DataProvider<TokenBatch> {
 public:
  TokenDataProvider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed);

  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext& context,
                                                            std::optional<std::int64_t> total_steps) override;

 private:
  DataConfig config_;
  TokenLimits limits_;
  std::int64_t base_seed_;
};

}  // namespace d9d
