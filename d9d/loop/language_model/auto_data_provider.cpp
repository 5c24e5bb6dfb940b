#include "d9d/loop/language_model/auto_data_provider.h"

#include "d9d/data/build/pair_stream.h"

namespace d9d {

namespace detail {

void log_stream(const AnyPackStream& stream, const Logger& log) {
  for (const std::string& line : tree_lines(stream.describe())) log.info("data: ", line);
}

}  // namespace detail

namespace {

AutoDataProvider<TokenBatch> data_provider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed,
                                           std::unique_ptr<PackStream<TokenBatch>> (*build)(const DataConfig&,
                                                                                            TokenStreamOptions)) {
  nlohmann::json hparams = write_record(config);
  return AutoDataProvider<TokenBatch>(
      [config = std::move(config), limits, build](const DistContext& context, const StreamOptions& options) {
        return build(config, {.vocabulary_size = limits.vocabulary_size,
                              .max_positions = limits.max_positions,
                              .shows_progress = context.is_local_main_process(),
                              .mesh = context.mesh_parameters(),
                              .stream = options});
      },
      base_seed, std::move(hparams));
}

}  // namespace

AutoDataProvider<TokenBatch> token_data_provider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed) {
  return data_provider(std::move(config), limits, base_seed, build_token_stream);
}

AutoDataProvider<TokenBatch> pair_data_provider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed) {
  return data_provider(std::move(config), limits, base_seed, build_pair_stream);
}

}  // namespace d9d
