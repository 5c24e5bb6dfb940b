#include "d9d/data/build_documents.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/data/order/numpy_permutation.h"
#include "d9d/data/source/match_files.h"
#include "d9d/data/source/megatron_documents.h"
#include "d9d/data/source/permuted_documents.h"
#include "d9d/data/source/token_corpus.h"
#include "d9d/data/text/chat_encoder.h"
#include "d9d/data/text/column_rows.h"
#include "d9d/data/text/dataset_files.h"
#include "d9d/data/text/jsonl_rows.h"
#include "d9d/data/text/text_file_rows.h"
#include "d9d/data/text/token_cache.h"
#include "d9d/data/text/tokenizer_encoder.h"
#include "d9d/data/text_form.h"
#include "d9d/data/view/token_dataset.h"

namespace d9d {

namespace {

using Documents = std::shared_ptr<const TokenDocuments>;
using Rows = std::shared_ptr<const TextRows>;
using Encoder = std::shared_ptr<const TextEncoder>;

void check_vocabulary(std::int64_t needed, const char* of, std::int64_t vocabulary_size) {
  D9D_CHECK(vocabulary_size >= needed, ConfigError, "[data::build_documents] expected a vocabulary of at least ",
            needed, " for ", of, ", got ", vocabulary_size, ". Enlarge the model's vocabulary.");
}

Encoder text_encoder(const TokenizationConfig& config) {
  if (!config.tokenizer) return std::make_shared<const ByteEncoder>();
  const EncodeOptions options{.add_special_tokens = config.add_special_tokens};
  return std::make_shared<const TokenizerEncoder>(*config.tokenizer, options);
}

Encoder row_encoder(const TextSource& source) { return text_encoder(source.tokenization); }

template <class Source>
requires requires(const Source& source) { source.columns; }
Encoder row_encoder(const Source& source) {
  const ColumnsConfig& columns = source.columns;
  if (!columns.messages_column) return text_encoder(columns.tokenization);
  return std::make_shared<const ChatEncoder>(*columns.tokenization.tokenizer, chat_family(columns));
}

// `encoder` if the model has its tokens.
Encoder checked(Encoder encoder, std::int64_t vocabulary_size) {
  check_vocabulary(encoder->vocabulary_size(), "the tokenizer (without one tokens are bytes)", vocabulary_size);
  return encoder;
}

TokenizeOptions tokenize_options(const TokenizationConfig& config, const TextEncoder& encoder) {
  TokenizeOptions options{.bad_rows = config.bad_rows, .num_threads = config.num_proc};
  if (!config.end_of_document) return options;
  options.end_of_document = encoder.id_of(*config.end_of_document);
  D9D_CHECK(options.end_of_document, ConfigError, "[data::build_documents] expected end_of_document = '",
            *config.end_of_document, "' to be a token of the tokenizer, got none of that text. Correct it.");
  return options;
}

Documents tokenised(Rows rows, Encoder encoder, const TokenizationConfig& config, const DocumentOptions& options,
                    std::int64_t max_rows = -1) {
  TokenizeOptions tokenize = tokenize_options(config, *encoder);
  tokenize.max_rows = max_rows;
  return cached_documents(std::move(rows), std::move(encoder),
                          {.folder = config.cache ? *config.cache : default_token_cache(),
                           .tokenize = tokenize,
                           .vocabulary_size = options.vocabulary_size,
                           .shows_progress = options.shows_progress,
                           .log = options.log});
}

// Sources of text: rows_of() and tokenization_of() each.
// -------------------------------------------------------

Rows rows_of(const DatasetFiles& files, std::vector<std::string> columns,
             ColumnContent content = ColumnContent::kText) {
  check_no_pointers(files.paths);
  switch (files.format) {
    case DatasetFormat::kArrow:
      return std::make_shared<const ColumnRows>(files.paths, ColumnFormat::kArrow, std::move(columns), content);
    case DatasetFormat::kParquet:
      return std::make_shared<const ColumnRows>(files.paths, ColumnFormat::kParquet, std::move(columns), content);
    case DatasetFormat::kJsonl:
      return std::make_shared<const JsonlRows>(files.paths, std::move(columns), JsonlRows::kPartBytes, content);
  }
  D9D_ASSERT(false, "format ", static_cast<int>(files.format));
}

Rows rows_of(const DatasetFiles& files, const ColumnsConfig& config) {
  if (config.messages_column) return rows_of(files, std::vector{*config.messages_column}, ColumnContent::kJson);
  if (!config.prompt_column) return rows_of(files, std::vector{config.column});
  return rows_of(files, std::vector{*config.prompt_column, config.column});
}

Rows rows_of(const TextSource& config) { return std::make_shared<const TextFileRows>(match_files(config.paths)); }

Rows rows_of(const JsonlSource& config) {
  return rows_of({.format = DatasetFormat::kJsonl, .paths = match_files(config.columns.paths)}, config.columns);
}

Rows rows_of(const ParquetSource& config) {
  return rows_of({.format = DatasetFormat::kParquet, .paths = match_files(config.columns.paths)}, config.columns);
}

// First what is in folders of datasets, then the files.
Rows rows_of(const ArrowSource& config) {
  DatasetFiles all;
  std::vector<std::string> patterns;
  const auto add = [&all](const DatasetFiles& files) {
    D9D_CHECK(all.paths.empty() || all.format == files.format, ConfigError,
              "[data::build_documents] expected paths of one format in a source of kind 'arrow', got '",
              files.paths.front().string(), "' after '", all.paths.front().string(),
              "'. Make them sources of a mixture.");
    all.format = files.format;
    all.paths.insert(all.paths.end(), files.paths.begin(), files.paths.end());
  };
  for (const std::string& path : config.columns.paths) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      add(dataset_files(path, config.split));
    } else {
      patterns.push_back(path);
    }
  }
  if (!patterns.empty() || all.paths.empty()) add({.format = DatasetFormat::kArrow, .paths = match_files(patterns)});
  return rows_of(all, config.columns);
}

const TokenizationConfig& tokenization_of(const TextSource& config) { return config.tokenization; }
template <class Source>
requires requires(const Source& source) { source.columns; }
const TokenizationConfig& tokenization_of(const Source& config) { return config.columns.tokenization; }

// Leaves one, which is refused, if all are.
void skip_empty(std::vector<std::filesystem::path>& files, const Logger& log) {
  const auto has_bytes = [](const std::filesystem::path& file) { return std::filesystem::file_size(file) > 0; };
  const auto empty = std::ranges::stable_partition(files, has_bytes);
  if (empty.empty() || std::ssize(empty) == std::ssize(files)) return;
  log.warning("data: skipped ", empty.size(), " bad rows, the first: no bytes in '", empty.front().string(), "'");
  files.erase(empty.begin(), empty.end());
}

bool is_bytes(const TextSource& config) {
  return !config.tokenization.tokenizer && !config.tokenization.end_of_document;
}

// The documents of each source.
// -----------------------------

template <class Source>
requires requires(const Source& source) { rows_of(source); }
Documents documents_of(const Source& config, const DocumentOptions& options) {
  Rows rows = rows_of(config);
  return tokenised(std::move(rows), checked(row_encoder(config), options.vocabulary_size), tokenization_of(config),
                   options);
}

Documents documents_of(const TextSource& config, const DocumentOptions& options) {
  if (!is_bytes(config)) return documents_of<TextSource>(config, options);
  check_vocabulary(kByteVocabularySize, "data of kind 'text' without a tokenizer (tokens are bytes)",
                   options.vocabulary_size);
  const TokenFormat bytes{
      .dtype = TokenDtype::kUint8, .vocabulary_size = options.vocabulary_size, .tokenizer = byte_tokenizer_identity()};
  std::vector<std::filesystem::path> files = match_files(config.paths);
  if (config.tokenization.bad_rows == BadRows::kSkip) skip_empty(files, options.log);
  return std::make_shared<const TokenCorpus>(files, bytes);
}

Documents documents_of(const TokensSource& config, const DocumentOptions& options) {
  return std::make_shared<const TokenCorpus>(match_files({config.path.string()}),
                                             TokenFormat{.dtype = config.dtype,
                                                         .vocabulary_size = options.vocabulary_size,
                                                         .end_of_document = config.end_of_document});
}

Documents documents_of(const MegatronSource& config, const DocumentOptions& options) {
  std::vector<Documents> sources;
  for (const auto& path : match_files(config.paths)) {
    sources.push_back(std::make_shared<const MegatronDocuments>(path, options.vocabulary_size));
  }
  return std::make_shared<const JoinedDocuments>(std::move(sources));
}

}  // namespace

Documents build_documents(const SourceConfig& config, const DocumentOptions& options) {
  return std::visit([&](const auto& source) { return documents_of(source, options); }, config);
}

Documents build_documents(const DatasetDataConfig& config, const DocumentOptions& options) {
  const TokenizationConfig tokenization{
      .tokenizer = config.tokenizer, .add_special_tokens = true, .num_proc = config.num_proc};
  Rows rows = rows_of(dataset_files(config.dataset, config.split), std::vector{config.text_column});
  Documents documents = tokenised(std::move(rows), checked(text_encoder(tokenization), options.vocabulary_size),
                                  tokenization, options, config.use_samples);
  auto order = numpy_permutation(documents->size(), static_cast<std::uint64_t>(config.shuffle_seed));
  return std::make_shared<const PermutedDocuments>(std::move(documents), std::move(order));
}

TokenisableRows build_rows(const SourceConfig& config, std::int64_t vocabulary_size) {
  return std::visit(
      [vocabulary_size](const auto& source) -> TokenisableRows {
        if constexpr (requires { rows_of(source); }) {
          Encoder encoder = checked(row_encoder(source), vocabulary_size);
          TokenizeOptions options = tokenize_options(tokenization_of(source), *encoder);
          return {.rows = rows_of(source), .encoder = std::move(encoder), .options = std::move(options)};
        } else {
          throw ConfigError(
              "[data::build_rows] expected a source of text (text, jsonl, parquet, arrow) for the view \"streamed\", "
              "got one of tokens, which need no streaming. Choose the view \"packed\".");
        }
      },
      config);
}

std::optional<std::int64_t> document_separator(const SourceConfig& config) {
  const auto* text = std::get_if<TextSource>(&config);
  return text != nullptr && is_bytes(*text) ? std::optional(kDocumentSeparator) : std::nullopt;
}

}  // namespace d9d
