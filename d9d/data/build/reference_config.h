// The section "data" in the example of d9d 0.16 (the reference): a Hugging Face dataset and a tokenizer.json. It has no
// "kind". No other kind of data can replace it, because none has its order: numpy's random numbers shuffle the rows,
// which are then sorted in buffers, where Python's random numbers shuffle the batches.
//
// Example
//   {"dataset": "c4_small", "split": "train", "text_column": "text", "use_samples": 1000, "shuffle_seed": 42,
//    "tokenizer": "tokenizer.json", "num_proc": 4, "presort_buffer_size": 256, "global_batch_size": 64,
//    "microbatch_size": 8}
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "d9d/base/record.h"
#include "d9d/data/build/auto_data_config.h"

namespace d9d {

struct DatasetDataConfig {
  std::string dataset = {};              // a folder of a Hugging Face dataset
  std::string split = {};                // of the dataset
  std::string text_column = {};          // the column with the text
  std::int64_t use_samples = 1;          // at most this many rows become documents
  std::int64_t shuffle_seed = 0;         // of the order of rows and of batches
  std::filesystem::path tokenizer = {};  // a tokenizer.json
  std::int64_t num_proc = 1;             // threads that tokenise
  std::int64_t presort_buffer_size = 1;  // documents that are sorted by length at a time
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

}  // namespace d9d
