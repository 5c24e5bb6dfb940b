#include "d9d/loop/language_model/auto_data_provider.h"

namespace d9d {

namespace detail {

void log_stream(const AnyPackStream& stream, const Logger& log) {
  for (const std::string& line : tree_lines(stream.describe())) log.info("data: ", line);
}

}  // namespace detail

AutoDataProvider<TokenBatch> token_data_provider(DataConfig config, const TokenLimits& limits, std::int64_t base_seed) {
  nlohmann::json hparams = write_record(config);
  return AutoDataProvider<TokenBatch>(
      [config = std::move(config), limits](const DistContext& context, const StreamOptions& options) {
        return build_token_stream(config, {.vocabulary_size = limits.vocabulary_size,
                                           .max_positions = limits.max_positions,
                                           .shows_progress = context.is_local_main_process(),
                                           .mesh = context.mesh_parameters(),
                                           .stream = options});
      },
      base_seed, std::move(hparams));
}

}  // namespace d9d
