// Which samples make which microbatch of which data-parallel rank.
//
// Example
//   const GlobalBatchSampler sampler({.dataset_size = 1000, .global_batch_size = 64, .microbatch_size = 8,
//                                     .rank = {.index = 1, .size = 4}, .shuffle = true, .seed = 1337});
//   const std::vector<std::int64_t> samples = sampler.samples(0);   // 8 indices of the first microbatch of rank 1
//
// The order is global: step s consumes positions [s*G, (s+1)*G) of one order of the dataset (G = global_batch_size),
// and only then are they dealt to the ranks. What a step trains on depends on (seed, epoch), never on the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/data/config.h"

namespace d9d {

// A coordinate on the data-parallel axis.
struct DataParallelRank {
  std::int64_t index = 0;
  std::int64_t size = 1;
};

class GlobalBatchSampler {
 public:
  struct Options {
    std::int64_t dataset_size = 0;
    std::int64_t global_batch_size = 1;
    std::int64_t microbatch_size = 1;
    DataParallelRank rank = {};
    ShardIndexingMode mode = ShardIndexingMode::kSequential;
    bool shuffle = false;
    std::uint64_t seed = 0;
    // The samples left after the last full global batch. Dropped: nor does a microbatch ever hold fewer samples than
    // microbatch_size. Kept: dealt like the others after repeating the last one until they divide by the rank count, so
    // that all ranks have the same microbatches.
    bool drop_last = true;
    // Without end: position p is sample p mod dataset_size of epoch p div dataset_size, and each epoch has an order of
    // its own. There is no rest then.
    bool repeat = false;
  };

  // Throws ConfigError when there is no sample, or the batch sizes and rank count do not fit.
  explicit GlobalBatchSampler(Options options);

  // Microbatches of one rank; nullopt when they never end.
  [[nodiscard]] std::optional<std::int64_t> num_microbatches() const;

  // Dataset indices of microbatch `index` of this rank. Safe to call from many threads.
  [[nodiscard]] std::vector<std::int64_t> samples(std::int64_t index) const;

  // Its number among the microbatches of its step on all ranks. What one rank deals itself has the same numbers: in
  // chunked order, where microbatches divide a rank's part, and in sequential order with microbatches of one sample.
  [[nodiscard]] std::int64_t number_in_step(std::int64_t index) const;

  // Where a rank stands that has handed out `num_consumed` microbatches. The same on all ranks.
  [[nodiscard]] nlohmann::json state(std::int64_t num_consumed) const;

  // The inverse of state(). Throws StateError naming what differs: the dataset and its order must be those of the saved
  // run. Batch sizes and rank count may differ when the position is the start of a global batch under both.
  [[nodiscard]] std::int64_t resume(const nlohmann::json& state) const;

 private:
  [[nodiscard]] std::int64_t samples_per_rank() const;
  [[nodiscard]] std::int64_t samples_in_step(std::int64_t step) const;  // of this rank
  [[nodiscard]] std::int64_t sample_at(std::int64_t position) const;    // in the global order

  Options options_;
  std::int64_t microbatches_per_step_;
};

}  // namespace d9d
