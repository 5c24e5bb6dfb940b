#include "d9d/data/token_stream.h"

#include "d9d/base/check.h"
#include "d9d/data/token_dataset.h"

namespace d9d {

namespace {

std::shared_ptr<TokenDataset> build_dataset(const TextDataConfig& config, std::int64_t vocabulary_size) {
  D9D_CHECK(vocabulary_size >= kByteVocabularySize, ConfigError,
            "[data::build_token_stream] expected a vocabulary of at least ", kByteVocabularySize,
            " for data of kind 'text' (tokens are bytes), got ", vocabulary_size, ". Enlarge the model's vocabulary.");
  return text_dataset(config.paths, config.sequence_length);
}

std::shared_ptr<TokenDataset> build_dataset(const TokensDataConfig& config, std::int64_t vocabulary_size) {
  return token_file_dataset({config.path.string()}, {.dtype = config.dtype, .vocabulary_size = vocabulary_size},
                            config.sequence_length);
}

std::shared_ptr<TokenDataset> build_dataset(const DatasetDataConfig& config, std::int64_t) {
  throw ConfigError(
      cat("[data::build_token_stream] expected data of kind 'text' or 'tokens', got the Hugging Face "
          "dataset '",
          config.dataset, "', which cannot be read yet. Tokenise it into a file and use kind 'tokens'."));
}

}  // namespace

std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config, TokenStreamOptions options) {
  auto dataset = std::visit([&](const auto& source) { return build_dataset(source, options.vocabulary_size); }, config);
  return make_pack_stream<TokenBatch>(std::move(dataset), collate_fixed, loader_config(config), options.stream);
}

}  // namespace d9d
