// Tokens of 13 documents of 1 to 7 positions, as data of a PipelineJob: five are left after a global batch of eight.
//
// Example
//   train({.data = thirteen_documents(PackedViewConfig{}, ShardIndexingMode::kSequential, 1), .num_steps = 1})
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::pipeline {

// In sequences of 8 positions. Writes a file in folder().
inline DataConfig thirteen_documents(const ViewConfig& view, ShardIndexingMode mode, std::int64_t microbatch_size) {
  constexpr char kEnd = 20;
  std::filesystem::create_directories(folder());
  const std::filesystem::path path = folder() / "tokens.bin";
  std::string tokens;
  for (int i = 0; i < 13; ++i) {
    for (int j = 0; j < 1 + 5 * i % 7; ++j) tokens += static_cast<char>((i * 3 + j * j) % 20);
    tokens += kEnd;
  }
  std::ofstream(path, std::ios::binary) << tokens;
  return TokensDataConfig{.source = {.path = path,
                                     .dtype = TokenDtype::kUint8,
                                     .end_of_document = kEnd,
                                     .sequence = {.sequence_length = 8, .view = view}},
                          .loader = {.global_batch_size = 8,
                                     .microbatch_size = microbatch_size,
                                     .shard_indexing_mode = mode,
                                     .shuffle = true,
                                     .drop_last = false}};
}

}  // namespace d9d::test::pipeline
