// Builds the pack stream of a job that trains on pairs of answers, from the configuration of its data: rows with the
// key "pairs" and the view "documents".
//
// Example
//   {"kind": "jsonl", "paths": ["pairs.jsonl"], "pairs": {"format": "messages"}, "tokenizer": "tokenizer.json",
//    "sequence_length": 1024, "view": {"kind": "documents", "long_documents": "skip"}, "shuffle": true,
//    "global_batch_size": 32, "microbatch_size": 4, "num_workers": 1}
//
//   auto stream = build_pair_stream(config.data, {.vocabulary_size = 151936, .max_positions = 40960});
#pragma once

#include <memory>

#include "d9d/data/build/token_stream.h"

namespace d9d {

// global_batch_size and microbatch_size count pairs; a batch has two sequences for each (collate_pairs()), padded to
// the longest of the microbatch, in a multiple of mesh.position_divisor(). Throws the ConfigError or IoError of
// build_documents() and PairDataset, and ConfigError for data that are no pairs, for other views, for long_documents
// other than refuse and skip, and if sequences are longer than max_positions.
[[nodiscard]] std::unique_ptr<PackStream<TokenBatch>> build_pair_stream(const DataConfig& config,
                                                                        TokenStreamOptions options);

}  // namespace d9d
