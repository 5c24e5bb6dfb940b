#include "d9d/data/token_stream.h"

#include "d9d/base/check.h"
#include "d9d/data/view/token_dataset.h"

namespace d9d {

namespace {

void check_length(std::int64_t sequence_length, std::optional<std::int64_t> max_positions) {
  D9D_CHECK(!max_positions || sequence_length <= *max_positions, ConfigError,
            "[data::build_token_stream] expected sequence_length <= the model's max_position_ids = ", *max_positions,
            ", got sequence_length = ", sequence_length, ". Change one of the two.");
}

std::shared_ptr<TokenDataset> build_dataset(const TextDataConfig& config, const TokenStreamOptions& options) {
  check_length(config.sequence_length, options.max_positions);
  D9D_CHECK(options.vocabulary_size >= kByteVocabularySize, ConfigError,
            "[data::build_token_stream] expected a vocabulary of at least ", kByteVocabularySize,
            " for data of kind 'text' (tokens are bytes), got ", options.vocabulary_size,
            ". Enlarge the model's vocabulary.");
  return text_dataset(config.paths, config.sequence_length);
}

std::shared_ptr<TokenDataset> build_dataset(const TokensDataConfig& config, const TokenStreamOptions& options) {
  check_length(config.sequence_length, options.max_positions);
  return token_file_dataset({config.path.string()}, {.dtype = config.dtype, .vocabulary_size = options.vocabulary_size},
                            config.sequence_length);
}

std::shared_ptr<TokenDataset> build_dataset(const DatasetDataConfig& config, const TokenStreamOptions&) {
  throw ConfigError(
      cat("[data::build_token_stream] expected data of kind 'text' or 'tokens', got the Hugging Face "
          "dataset '",
          config.dataset, "', which cannot be read yet. Tokenise it into a file and use kind 'tokens'."));
}

}  // namespace

std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config, TokenStreamOptions options) {
  auto dataset = std::visit([&](const auto& source) { return build_dataset(source, options); }, config);
  return make_pack_stream<TokenBatch>(std::move(dataset), collate_fixed, loader_config(config), options.stream);
}

}  // namespace d9d
