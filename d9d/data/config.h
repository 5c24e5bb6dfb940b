// The data source of a pretraining job: one of the records below, selected in JSON by "kind". The keys of
// AutoDataConfig are written beside the source's own.
//
// Example
//   {"kind": "text", "paths": ["corpus/*.txt"], "sequence_length": 512, "shuffle": true,
//    "global_batch_size": 64, "microbatch_size": 8, "num_workers": 0}
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "d9d/base/record.h"
#include "d9d/data/order/shard_indexing_mode.h"
#include "d9d/data/source/token_dtype.h"

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
  bool persistent_workers = false;
  std::optional<std::int64_t> prefetch_factor = {};  // batches that each worker reads ahead
  double timeout = 0.0;                              // LoaderOptions::timeout_seconds

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Data = AutoDataConfig;
    return record<Data>(required("global_batch_size", &Data::global_batch_size, at_least(1)),
                        required("microbatch_size", &Data::microbatch_size, at_least(1)),
                        required("num_workers", &Data::num_workers, at_least(0)),
                        defaulted("shard_indexing_mode", &Data::shard_indexing_mode),
                        defaulted("shuffle", &Data::shuffle), defaulted("drop_last", &Data::drop_last),
                        defaulted("pin_memory", &Data::pin_memory),
                        defaulted("persistent_workers", &Data::persistent_workers),
                        defaulted("prefetch_factor", &Data::prefetch_factor, at_least(1)),
                        defaulted("timeout", &Data::timeout, at_least(0)));
  }
};

// Plain text, cut into sequences.
struct TextDataConfig {
  std::vector<std::string> paths = {};  // files or globs
  std::int64_t sequence_length = 1;
  AutoDataConfig loader = {};

  static constexpr Tag kTag = {"kind", "text"};
  static constexpr auto fields() {
    using Data = TextDataConfig;
    return record<Data>(required("paths", &Data::paths),
                        required("sequence_length", &Data::sequence_length, at_least(1)), flattened(&Data::loader));
  }
};

// A binary file of token ids, little-endian, without a header.
struct TokensDataConfig {
  std::filesystem::path path = {};
  TokenDtype dtype = TokenDtype::kUint16;
  std::int64_t sequence_length = 1;
  AutoDataConfig loader = {};

  static constexpr Tag kTag = {"kind", "tokens"};
  static constexpr auto fields() {
    using Data = TokensDataConfig;
    return record<Data>(required("path", &Data::path), required("dtype", &Data::dtype),
                        required("sequence_length", &Data::sequence_length, at_least(1)), flattened(&Data::loader));
  }
};

// The record of the reference example: a Hugging Face dataset and a tokenizer.json. It has no "kind".
struct DatasetDataConfig {
  std::string dataset = {};  // path or name on the hub
  std::string split = {};
  std::string text_column = {};
  std::int64_t use_samples = 1;
  std::int64_t shuffle_seed = 0;
  std::filesystem::path tokenizer = {};
  std::int64_t num_proc = 1;
  std::int64_t presort_buffer_size = 1;
  AutoDataConfig loader = {};

  static constexpr auto fields() {
    using Data = DatasetDataConfig;
    return record<Data>(
        required("dataset", &Data::dataset), required("split", &Data::split),
        required("text_column", &Data::text_column), required("use_samples", &Data::use_samples, at_least(1)),
        required("shuffle_seed", &Data::shuffle_seed), required("tokenizer", &Data::tokenizer),
        required("num_proc", &Data::num_proc, at_least(1)),
        required("presort_buffer_size", &Data::presort_buffer_size, at_least(1)), flattened(&Data::loader));
  }
};

using DataConfig = std::variant<TextDataConfig, TokensDataConfig, DatasetDataConfig>;

// The loader keys, which every source has.
[[nodiscard]] inline const AutoDataConfig& loader_config(const DataConfig& config) {
  return std::visit([](const auto& source) -> const AutoDataConfig& { return source.loader; }, config);
}

extern template const ValueType& json_type<AutoDataConfig>();
extern template const ValueType& json_type<DataConfig>();

}  // namespace d9d
