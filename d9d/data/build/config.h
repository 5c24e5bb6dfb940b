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

#include "d9d/base/record.h"
#include "d9d/data/build/view_config.h"
#include "d9d/data/order/shard_indexing_mode.h"
#include "d9d/data/source/token_dtype.h"
#include "d9d/data/text/bad_rows.h"
#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d {

// Batching and loading: settings that every data source of the trainer needs.
struct AutoDataConfig {
  std::int64_t global_batch_size = 1;  // samples of one optimiser step over all ranks
  std::int64_t microbatch_size = 1;    // samples of one forward pass on one rank
  std::int64_t num_workers = 0;        // 0: samples are read by the training thread
  ShardIndexingMode shard_indexing_mode = ShardIndexingMode::kSequential;
  bool shuffle = false;
  bool drop_last = true;  // drop the last incomplete batch
  bool pin_memory = true;
  bool persistent_workers = false;                   // no effect: workers live as long as the stream, over all passes
  std::optional<std::int64_t> prefetch_factor = {};  // batches that each worker reads ahead
  // Seconds within which a microbatch must be read; 0: no limit. null: 300, but no limit for the view "streamed".
  std::optional<double> timeout = {};

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Data = AutoDataConfig;
    return record<Data>(required("global_batch_size", &Data::global_batch_size, at_least(1)),
                        required("microbatch_size", &Data::microbatch_size, at_least(1)),
                        defaulted("num_workers", &Data::num_workers, at_least(0)),
                        defaulted("shard_indexing_mode", &Data::shard_indexing_mode),
                        defaulted("shuffle", &Data::shuffle), defaulted("drop_last", &Data::drop_last),
                        defaulted("pin_memory", &Data::pin_memory),
                        defaulted("persistent_workers", &Data::persistent_workers),
                        defaulted("prefetch_factor", &Data::prefetch_factor, at_least(1)),
                        defaulted("timeout", &Data::timeout, at_least(0)));
  }
};

// Sources: the files that "kind" selects, and how their documents become samples.
// --------------------------------------------------

// How rows of text become documents of tokens.
struct TokenizationConfig {
  std::optional<std::filesystem::path> tokenizer = {};  // a tokenizer.json; unset: tokens are bytes
  std::optional<std::string> end_of_document = {};      // text of the token that is appended to each document
  bool add_special_tokens = false;                      // of the tokenizer's template, such as a first token
  BadRows bad_rows = BadRows::kRefuse;
  std::int64_t num_proc = 1;                        // threads that tokenise
  std::optional<std::filesystem::path> cache = {};  // the folder of token files; unset: default_token_cache()

  static constexpr auto fields() {
    using Data = TokenizationConfig;
    return record<Data>(defaulted("tokenizer", &Data::tokenizer), defaulted("end_of_document", &Data::end_of_document),
                        defaulted("add_special_tokens", &Data::add_special_tokens),
                        defaulted("bad_rows", &Data::bad_rows), defaulted("num_proc", &Data::num_proc, at_least(1)),
                        defaulted("cache", &Data::cache));
  }
};

// Files of rows with columns.
struct ColumnsConfig {
  std::vector<std::string> paths = {};  // files or globs
  std::string column = "text";
  std::optional<std::string> prompt_column = {};  // text before that of `column`; its tokens are not predicted
  // Instead of the two columns above: a column of conversations, which are lists of {"role", "content"}. Only what the
  // assistant says is predicted.
  std::optional<std::string> messages_column = {};
  std::optional<ChatFamily> chat_template = {};  // of conversations; unset: chat_family_beside(tokenizer)
  TokenizationConfig tokenization = {};

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Data = ColumnsConfig;
    return record<Data>(required("paths", &Data::paths), defaulted("column", &Data::column),
                        defaulted("prompt_column", &Data::prompt_column),
                        defaulted("messages_column", &Data::messages_column),
                        defaulted("chat_template", &Data::chat_template), flattened(&Data::tokenization));
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
  std::string split = "train";
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "arrow"};
  static constexpr auto fields() {
    using Data = ArrowSource;
    return record<Data>(flattened(&Data::columns), defaulted("split", &Data::split), flattened(&Data::sequence));
  }
};

// A binary file of token ids, little-endian, without a header.
struct TokensSource {
  std::filesystem::path path = {};  // may be a glob
  TokenDtype dtype = TokenDtype::kUint16;
  std::optional<std::int64_t> end_of_document = {};  // TokenFormat::end_of_document
  SequenceConfig sequence = {};

  static constexpr Tag kTag = {"kind", "tokens"};
  static constexpr auto fields() {
    using Data = TokensSource;
    return record<Data>(required("path", &Data::path), required("dtype", &Data::dtype),
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
  double weight = 1;  // of this source's samples among those of all sources
  SourceConfig source = {};

  static constexpr auto fields() {
    using Data = MixedSourceConfig;
    return record<Data>(required("weight", &Data::weight, greater_than(0)), required("source", &Data::source));
  }
};

// Sources mixed by weight: MixtureDataset.
struct MixtureDataConfig {
  std::vector<MixedSourceConfig> sources = {};
  AutoDataConfig loader = {};

  static constexpr Tag kTag = {"kind", "mixture"};
  static constexpr auto fields() {
    using Data = MixtureDataConfig;
    return record<Data>(required("sources", &Data::sources), flattened(&Data::loader));
  }
};

// The record of the example of the reference: a Hugging Face dataset and a tokenizer.json. It has no "kind".
struct DatasetDataConfig {
  std::string dataset = {};  // a folder, as dataset_files() reads it
  std::string split = {};
  std::string text_column = {};
  std::int64_t use_samples = 1;   // the first rows; they are shuffled with shuffle_seed, as datasets does
  std::int64_t shuffle_seed = 0;  // and sorted in buffers by length, as BufferOrder::kLegacy does
  std::filesystem::path tokenizer = {};
  std::int64_t num_proc = 1;
  std::int64_t presort_buffer_size = 1;
  AutoDataConfig loader = {};

  static constexpr auto fields() {
    using Data = DatasetDataConfig;
    return record<Data>(
        required("dataset", &Data::dataset), required("split", &Data::split),
        required("text_column", &Data::text_column), required("use_samples", &Data::use_samples, at_least(1)),
        required("shuffle_seed", &Data::shuffle_seed, at_least(0)), required("tokenizer", &Data::tokenizer),
        required("num_proc", &Data::num_proc, at_least(1)),
        required("presort_buffer_size", &Data::presort_buffer_size, at_least(1)), flattened(&Data::loader));
  }
};

using DataConfig = std::variant<TextDataConfig, JsonlDataConfig, ParquetDataConfig, ArrowDataConfig, TokensDataConfig,
                                MegatronDataConfig, MixtureDataConfig, DatasetDataConfig>;

// The loader keys, which every source has.
[[nodiscard]] inline const AutoDataConfig& loader_config(const DataConfig& config) {
  return std::visit([](const auto& source) -> const AutoDataConfig& { return source.loader; }, config);
}

extern template const ValueType& json_type<AutoDataConfig>();
extern template const ValueType& json_type<SourceConfig>();
extern template const ValueType& json_type<DataConfig>();

}  // namespace d9d
