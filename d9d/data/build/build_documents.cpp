#include "d9d/data/build/build_documents.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/data/build/text_format.h"
#include "d9d/data/sequences/token_dataset.h"
#include "d9d/data/source/match_files.h"
#include "d9d/data/source/megatron_documents.h"
#include "d9d/data/source/permuted_documents.h"
#include "d9d/data/source/source_files.h"
#include "d9d/data/source/token_corpus.h"
#include "d9d/data/text/column_rows.h"
#include "d9d/data/text/dataset_files.h"
#include "d9d/data/text/document_ends.h"
#include "d9d/data/text/jsonl_rows.h"
#include "d9d/data/text/marked_text.h"
#include "d9d/data/text/text_file_rows.h"
#include "d9d/data/text/token_cache.h"

namespace d9d {

namespace {

using Documents = std::shared_ptr<const TokenDocuments>;
using Rows = std::shared_ptr<const TextRows>;
using Encoder = std::shared_ptr<const TextEncoder>;

constexpr std::int64_t kMaxShownTokens = 400;

void check_vocabulary(std::int64_t needed, const char* of, std::int64_t vocabulary_size) {
  D9D_CHECK(vocabulary_size >= needed, ConfigError, "[data::build_documents] expected a vocabulary of at least ",
            needed, " for ", of, ", got ", vocabulary_size, ". Enlarge the model's vocabulary.");
}

Encoder row_encoder(const TextSource& source) { return encoder_of(source.tokenization); }

template <class Source>
requires requires(const Source& source) { source.columns; }
Encoder row_encoder(const Source& source) { return encoder_of(source.columns); }

// Returns `encoder`. Throws ConfigError if the model's vocabulary is smaller than the encoder's.
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

Documents tokenised(Rows rows, const Encoder& encoder, const TokenizationConfig& config, const DocumentOptions& options,
                    std::int64_t max_rows = -1) {
  TokenizeOptions tokenize = tokenize_options(config, *encoder);
  tokenize.max_rows = max_rows;
  Documents documents = cached_documents(std::move(rows), encoder,
                                         {.folder = config.cache ? *config.cache : default_token_cache(),
                                          .tokenize = tokenize,
                                          .vocabulary_size = options.vocabulary_size,
                                          .shows_progress = options.shows_progress,
                                          .log = options.log});
  if (documents->has_targets() && documents->size() > 0) {
    options.shared_log.info("the first document, what is learned between ⟦ and ⟧: ",
                            marked_line(*documents, 0, kMaxShownTokens, *encoder));
  }
  return documents;
}

// Sources of text: each kind has an overload of rows_of() and of tokenization_of().
// ----------------------------------------------------------

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
  if (config.pairs) {
    const PairsConfig& pairs = *config.pairs;
    std::vector columns{pairs.chosen_column, pairs.rejected_column};  // in the order of PairColumns
    if (pairs.prompt_column) columns.push_back(*pairs.prompt_column);
    if (config.tools_column) columns.push_back(*config.tools_column);
    return rows_of(files, std::move(columns), config.has_conversations() ? ColumnContent::kJson : ColumnContent::kText);
  }
  if (config.messages_column) {
    std::vector columns{*config.messages_column};
    if (config.tools_column) columns.push_back(*config.tools_column);
    return rows_of(files, std::move(columns), ColumnContent::kJson);
  }
  if (!config.prompt_column) return rows_of(files, std::vector{config.column});
  return rows_of(files, std::vector{*config.prompt_column, config.column});
}

Rows rows_of(const TextSource& config, const Logger& log) {
  return std::make_shared<const TextFileRows>(without_empty(source_files(config.paths, log), log));
}

Rows rows_of(const JsonlSource& config, const Logger& log) {
  std::vector<std::filesystem::path> paths = without_empty(source_files(config.columns.paths, log), log);
  return rows_of({.format = DatasetFormat::kJsonl, .paths = std::move(paths)}, config.columns);
}

Rows rows_of(const ParquetSource& config, const Logger& log) {
  return rows_of({.format = DatasetFormat::kParquet, .paths = source_files(config.columns.paths, log)}, config.columns);
}

// Keeps a file that several paths name only at its first place, and warns of the others.
void remove_repeated(std::vector<std::filesystem::path>& files, const Logger& log) {
  std::set<std::filesystem::path> known;
  std::erase_if(files, [&](const std::filesystem::path& file) {
    const bool is_known = !known.insert(std::filesystem::weakly_canonical(file)).second;
    if (is_known) log.warning("data: '", file.string(), "' is named by two paths: it is read once.");
    return is_known;
  });
}

// Reads the files of dataset folders first, then the other files.
Rows rows_of(const ArrowSource& config, const Logger& log) {
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
  warn_of_missing_parts(all.paths, log);
  if (!patterns.empty() || all.paths.empty()) {
    add({.format = DatasetFormat::kArrow, .paths = source_files(patterns, log)});
  }
  remove_repeated(all.paths, log);
  return rows_of(all, config.columns);
}

const TokenizationConfig& tokenization_of(const TextSource& config) { return config.tokenization; }
template <class Source>
requires requires(const Source& source) { source.columns; }
const TokenizationConfig& tokenization_of(const Source& config) { return config.columns.tokenization; }

// Returns whether the documents of a source may end without an end token, because neither the configuration nor the
// tokenizer's template appends one. False for conversations: their chat template ends them.
bool may_lack_ends(const TextSource& config, const TextEncoder& encoder) {
  return !config.tokenization.end_of_document && encoder.tokens_behind().empty();
}
template <class Source>
requires requires(const Source& source) { source.columns; }
bool may_lack_ends(const Source& config, const TextEncoder& encoder) {
  const ColumnsConfig& columns = config.columns;
  return !columns.has_conversations() && !columns.tokenization.end_of_document && encoder.tokens_behind().empty();
}

bool is_bytes(const TextSource& config) {
  return !config.tokenization.tokenizer && !config.tokenization.end_of_document;
}

// documents_of() of each kind of source.
// -----------------------------

template <class Source>
requires requires(const Source& source, const Logger& log) { rows_of(source, log); }
Documents documents_of(const Source& config, const DocumentOptions& options) {
  Rows rows = rows_of(config, options.shared_log);
  Encoder encoder = checked(row_encoder(config), options.vocabulary_size);
  Documents documents = tokenised(std::move(rows), encoder, tokenization_of(config), options);
  if (may_lack_ends(config, *encoder) && !end_with_special_tokens(*documents, *encoder)) {
    warn_of_missing_ends(*encoder, options.shared_log);
  }
  return documents;
}

Documents documents_of(const TextSource& config, const DocumentOptions& options) {
  if (!is_bytes(config)) return documents_of<TextSource>(config, options);
  check_vocabulary(kByteVocabularySize, "data of kind 'text' without a tokenizer (tokens are bytes)",
                   options.vocabulary_size);
  const TokenFormat bytes{
      .dtype = TokenDtype::kUint8, .vocabulary_size = options.vocabulary_size, .tokenizer = byte_tokenizer_identity()};
  const auto files = without_empty(source_files(config.paths, options.shared_log), options.shared_log);
  for (const std::filesystem::path& file : files) check_text_file(file);
  const bool has_separator = std::holds_alternative<ConcatenatedViewConfig>(config.sequence.view);
  if (!has_separator) warn_of_missing_ends(ByteEncoder(), options.shared_log);
  return std::make_shared<const TokenCorpus>(files, bytes);
}

Documents documents_of(const TokensSource& config, const DocumentOptions& options) {
  if (is_tokenized_folder(config.path)) {
    D9D_CHECK(!config.dtype && !config.end_of_document, ConfigError,
              "[data::build_documents] expected neither dtype nor end_of_document with the folder path = '",
              config.path.string(), "', whose manifest.json says them, got ",
              config.dtype ? "dtype" : "end_of_document", ". Remove it.");
    return std::make_shared<const TokenizedDocuments>(config.path, options.vocabulary_size);
  }
  D9D_CHECK(config.dtype, ConfigError, "[data::build_documents] expected dtype with the file path = '",
            config.path.string(), "', got none. Say the dtype of its ids.");
  return std::make_shared<const TokenCorpus>(
      without_empty(source_files({config.path.string()}, options.shared_log), options.shared_log),
      TokenFormat{.dtype = *config.dtype,
                  .vocabulary_size = options.vocabulary_size,
                  .end_of_document = config.end_of_document});
}

Documents documents_of(const MegatronSource& config, const DocumentOptions& options) {
  std::vector<Documents> sources;
  for (const auto& prefix : megatron_prefixes(config.paths, options.shared_log)) {
    sources.push_back(std::make_shared<const MegatronDocuments>(prefix, options.vocabulary_size));
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
  const DatasetFiles files = dataset_files(config.dataset, config.split);
  warn_of_missing_parts(files.paths, options.shared_log);
  Rows rows = rows_of(files, std::vector{config.text_column});
  Documents documents = tokenised(std::move(rows), checked(encoder_of(tokenization), options.vocabulary_size),
                                  tokenization, options, config.use_samples);
  return shuffled_as_numpy(std::move(documents), static_cast<std::uint64_t>(config.shuffle_seed));
}

TokenisableRows build_rows(const SourceConfig& config, std::int64_t vocabulary_size, const Logger& log) {
  return std::visit(
      [&](const auto& source) -> TokenisableRows {
        if constexpr (requires { rows_of(source, log); }) {
          Encoder encoder = checked(row_encoder(source), vocabulary_size);
          TokenizeOptions options = tokenize_options(tokenization_of(source), *encoder);
          Rows rows = rows_of(source, log);
          if (may_lack_ends(source, *encoder) && !end_with_special_tokens(*rows, *encoder)) {
            warn_of_missing_ends(*encoder, log);
          }
          return {.rows = std::move(rows), .encoder = std::move(encoder), .options = std::move(options)};
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
