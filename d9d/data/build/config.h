// The data of a job: one of the records below, selected in JSON by "kind". The keys of SequenceConfig and
// AutoDataConfig are written in the same object as those of the source.
//
// Example
//   {"kind": "jsonl", "paths": ["corpus/*.jsonl"], "tokenizer": "tokenizer.json", "end_of_document": "<|endoftext|>",
//    "sequence_length": 512, "view": {"kind": "packed"}, "shuffle": true,
//    "global_batch_size": 64, "microbatch_size": 8, "num_workers": 0}
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/record.h"
#include "d9d/data/build/auto_data_config.h"
#include "d9d/data/build/reference_config.h"
#include "d9d/data/build/view_config.h"
#include "d9d/data/source/token_dtype.h"
#include "d9d/data/text/bad_rows.h"
#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d {

// Sources: the files that "kind" selects, and how their documents become samples.
// --------------------------------------------------

// How rows of text become documents of tokens.
struct TokenizationConfig {
  std::optional<std::filesystem::path> tokenizer = {};  // a tokenizer.json; unset: tokens are bytes
  std::optional<std::string> end_of_document = {};      // text of the token that is appended to each document
  bool add_special_tokens = false;                      // whether to add the tokens of the tokenizer's template
  // Rows that give no document: the job ends with an error, or leaves them out and counts them.
  BadRows bad_rows = BadRows::kRefuse;
  std::int64_t num_proc = 1;  // threads that tokenise
  // Folder of token files; unset: $XDG_CACHE_HOME/d9d/tokens, or in ~/.cache.
  std::optional<std::filesystem::path> cache = {};

  static constexpr auto fields() {
    using Data = TokenizationConfig;
    return record<Data>(defaulted("tokenizer", &Data::tokenizer), defaulted("end_of_document", &Data::end_of_document),
                        defaulted("add_special_tokens", &Data::add_special_tokens),
                        defaulted("bad_rows", &Data::bad_rows), defaulted("num_proc", &Data::num_proc, at_least(1)),
                        defaulted("cache", &Data::cache));
  }
};

// What the columns of a pair of answers contain.
enum class PairFormat : std::uint8_t {
  kMessages,  // conversations, lists of {"role", "content"}, which a chat template writes
  kText,
};
constexpr auto enum_names(PairFormat) {
  return std::to_array<EnumName<PairFormat>>({{PairFormat::kMessages, "messages"}, {PairFormat::kText, "text"}});
}

// Rows that are a chosen and a rejected answer to one prompt, for a job that trains on preferences.
struct PairsConfig {
  PairFormat format = PairFormat::kMessages;  // of the columns
  std::string chosen_column = "chosen";       // of the preferred answer
  std::string rejected_column = "rejected";   // of the other one
  // The column of what precedes both answers; null: conversations, whose prompt is the messages with which both begin.
  std::optional<std::string> prompt_column = {};

  static constexpr auto fields() {
    using Pairs = PairsConfig;
    return record<Pairs>(defaulted("format", &Pairs::format), defaulted("chosen_column", &Pairs::chosen_column),
                         defaulted("rejected_column", &Pairs::rejected_column),
                         defaulted("prompt_column", &Pairs::prompt_column));
  }
};

// Files of rows with columns.
struct ColumnsConfig {
  std::vector<std::string> paths = {};            // files or globs
  std::string column = "text";                    // the column with the text
  std::optional<std::string> prompt_column = {};  // its text precedes that of `column` and is not predicted
  // Instead of the two columns above: a column of conversations, which are lists of {"role", "content"}. Only the
  // tokens of the assistant are predicted.
  std::optional<std::string> messages_column = {};
  // Instead of the columns above: pairs of answers, for a job that trains on preferences; null: rows are documents.
  std::optional<PairsConfig> pairs = {};
  // The column of the tools of a conversation, a list of their JSON schemas. Null, an empty list, and in JSON lines no
  // such key: a conversation without tools.
  std::optional<std::string> tools_column = {};
  // How conversations are written: a family (chatml, qwen2, qwen2.5, qwen3, llama3, llama3.2) or a file with a Jinja
  // template; unset: the template beside the tokenizer.
  std::optional<std::string> chat_template = {};
  // Variables of the chat template in all conversations, as apply_chat_template of transformers takes them:
  // {"enable_thinking": false}.
  nlohmann::ordered_json chat_template_kwargs = nlohmann::ordered_json::object();
  // Interpreter with the package jinja2, for templates of no family; unset: that of d9d's source folder.
  std::optional<std::string> python = {};
  TokenizationConfig tokenization = {};

  void validate(const ConfigPath& path) const;
  // Whether columns are conversations, which a chat template writes.
  [[nodiscard]] bool has_conversations() const {
    return messages_column || (pairs && pairs->format == PairFormat::kMessages);
  }

  static constexpr auto fields() {
    using Data = ColumnsConfig;
    return record<Data>(required("paths", &Data::paths), defaulted("column", &Data::column),
                        defaulted("prompt_column", &Data::prompt_column),
                        defaulted("messages_column", &Data::messages_column), defaulted("pairs", &Data::pairs),
                        defaulted("tools_column", &Data::tools_column),
                        defaulted("chat_template", &Data::chat_template),
                        defaulted("chat_template_kwargs", &Data::chat_template_kwargs),
                        defaulted("python", &Data::python), flattened(&Data::tokenization));
  }
};

// Text files; each is a document.
struct TextSource {
  std::vector<std::string> paths = {};  // files or globs
  TokenizationConfig tokenization = {};
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "text"};
  static constexpr auto fields() {
    using Data = TextSource;
    return record<Data>(required("paths", &Data::paths), flattened(&Data::tokenization), flattened(&Data::sequence));
  }
};

// Files of JSON lines.
struct JsonlSource {
  ColumnsConfig columns = {};
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "jsonl"};
  static constexpr auto fields() {
    using Data = JsonlSource;
    return record<Data>(flattened(&Data::columns), flattened(&Data::sequence));
  }
};

struct ParquetSource {
  ColumnsConfig columns = {};
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "parquet"};
  static constexpr auto fields() {
    using Data = ParquetSource;
    return record<Data>(flattened(&Data::columns), flattened(&Data::sequence));
  }
};

// Arrow's IPC streams or files, and folders of Hugging Face datasets (dataset_files()), from which `split` is read.
struct ArrowSource {
  ColumnsConfig columns = {};
  std::string split = "train";  // of a folder of a Hugging Face dataset
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "arrow"};
  static constexpr auto fields() {
    using Data = ArrowSource;
    return record<Data>(flattened(&Data::columns), defaulted("split", &Data::split), flattened(&Data::sequence));
  }
};

// A binary file of token ids, little-endian, without a header.
struct TokensSource {
  std::filesystem::path path = {};       // may be a glob; or a folder of d9d_tokenize, which says all that follows
  std::optional<TokenDtype> dtype = {};  // of one id
  std::optional<std::int64_t> end_of_document = {};  // the id that ends each document; null: each file is one document
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "tokens"};
  static constexpr auto fields() {
    using Data = TokensSource;
    return record<Data>(required("path", &Data::path), defaulted("dtype", &Data::dtype),
                        defaulted("end_of_document", &Data::end_of_document), flattened(&Data::sequence));
  }
};

// Megatron-LM's indexed datasets.
struct MegatronSource {
  std::vector<std::string> paths = {};  // .idx files or globs, each beside its .bin
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "megatron"};
  static constexpr auto fields() {
    using Data = MegatronSource;
    return record<Data>(required("paths", &Data::paths), flattened(&Data::sequence));
  }
};

using SourceConfig = std::variant<TextSource, JsonlSource, ParquetSource, ArrowSource, TokensSource, MegatronSource>;

// Data of a job: a source with its loader keys.
// -------------------------------------------------------------------------

template <class Source>
struct DataOf {
  Source source = {};
  AutoDataConfig loader = {};

  static constexpr Tag kTag = Source::kTag;
  static constexpr auto fields() { return record<DataOf>(flattened(&DataOf::source), flattened(&DataOf::loader)); }
};
using TextDataConfig = DataOf<TextSource>;
using JsonlDataConfig = DataOf<JsonlSource>;
using ParquetDataConfig = DataOf<ParquetSource>;
using ArrowDataConfig = DataOf<ArrowSource>;
using TokensDataConfig = DataOf<TokensSource>;
using MegatronDataConfig = DataOf<MegatronSource>;

struct MixedSourceConfig {
  double weight = 1;         // share of this source in the samples, relative to the other weights
  SourceConfig source = {};  // as the data of a job, without the keys of the loader

  static constexpr auto fields() {
    using Data = MixedSourceConfig;
    return record<Data>(required("weight", &Data::weight, greater_than(0)), required("source", &Data::source));
  }
};

// Sources mixed by weight: MixtureDataset.
struct MixtureDataConfig {
  std::vector<MixedSourceConfig> sources = {};  // at least one
  AutoDataConfig loader = {};

  static constexpr Tag kTag = {"kind", "mixture"};
  static constexpr auto fields() {
    using Data = MixtureDataConfig;
    return record<Data>(required("sources", &Data::sources), flattened(&Data::loader));
  }
};

using DataConfig = std::variant<TextDataConfig, JsonlDataConfig, ParquetDataConfig, ArrowDataConfig, TokensDataConfig,
                                MegatronDataConfig, MixtureDataConfig, DatasetDataConfig>;

// Returns the loader keys, which every kind of data has.
[[nodiscard]] inline const AutoDataConfig& loader_config(const DataConfig& config) {
  return std::visit([](const auto& source) -> const AutoDataConfig& { return source.loader; }, config);
}

// Returns the data of an evaluation set: with all samples, unless drop_last says otherwise or the view is "streamed",
// which always drops an incomplete step.
[[nodiscard]] DataConfig whole_set(DataConfig config);

// The longest sequences that the data gives, in positions; none for a dataset without a length of its own.
[[nodiscard]] std::optional<std::int64_t> sequence_length_of(const DataConfig& config);

extern template const ValueType& json_type<SourceConfig>();
extern template const ValueType& json_type<DataConfig>();

}  // namespace d9d
