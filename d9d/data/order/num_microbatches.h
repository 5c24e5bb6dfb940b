// How many microbatches a rank runs for one optimiser step.
//
// Example
//   d9d::num_microbatches_for_global_batch(
//       {.data_parallel_size = 2, .global_batch_size = 128, .microbatch_size = 8});  // 8
#pragma once

#include <cstdint>

namespace d9d {

struct BatchSizes {
  std::int64_t data_parallel_size = 1;  // replicate x shard; a pipeline, tensor or context group counts as one rank
  std::int64_t global_batch_size = 1;   // samples of one optimiser step over all ranks
  std::int64_t microbatch_size = 1;     // samples of one forward and backward on one rank
};

// Returns global_batch_size / (data_parallel_size * microbatch_size), with and without pipeline parallelism. Throws
// ConfigError if a size is not positive or the division has a remainder.
[[nodiscard]] std::int64_t num_microbatches_for_global_batch(const BatchSizes& sizes);

}  // namespace d9d
