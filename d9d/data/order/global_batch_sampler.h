// Determines which samples each data-parallel rank reads in each microbatch.
//
// Example
//   const GlobalBatchSampler sampler({.dataset_size = 1000, .global_batch_size = 64, .microbatch_size = 8,
//                                     .rank = {.index = 1, .size = 4}, .shuffle = true, .seed = 1337});
//   const std::vector<std::int64_t> samples = sampler.samples(0);   // 8 indices of the first microbatch of rank 1
//
// The order is global: step s consumes positions [s*G, (s+1)*G) of one order of the dataset (G = global_batch_size),
// which are then distributed over the ranks. The samples of a step depend only on (seed, epoch), not on the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/data/description/data_description.h"
#include "d9d/data/order/shard_indexing_mode.h"

namespace d9d {

// A coordinate on the data-parallel axis.
struct DataParallelRank {
  std::int64_t index = 0;
  std::int64_t size = 1;
};

// A sample of a dataset, and the pass over the dataset in which it is read.
struct SampleKey {
  std::int64_t index = 0;  // in the dataset
  std::int64_t epoch = 0;
  bool is_padding = false;  // repeats the step's last sample to even out the ranks; it does not count
};

class GlobalBatchSampler {
 public:
  struct Options {
    std::int64_t dataset_size = 0;
    std::string dataset_order = {};  // names the dataset's internal order; resume() compares it
    // Identifies the contents of the dataset independently of file names: a list with an object for each source, such
    // as to_json(DocumentsIdentity). resume() compares it if both runs have one; null: unknown.
    nlohmann::json dataset_identity = nullptr;
    std::int64_t global_batch_size = 1;
    std::int64_t microbatch_size = 1;
    DataParallelRank rank = {};
    ShardIndexingMode mode = ShardIndexingMode::kSequential;
    bool shuffle = false;
    std::uint64_t seed = 0;
    // What happens to the samples after the last full global batch. true: they are dropped, and every microbatch has
    // microbatch_size samples. false: they are distributed like the others, and all ranks have the same number of
    // microbatches. If too few samples are left for that, the last sample is repeated as padding (is_padding): in
    // sequential order until all ranks have the same number of samples, in chunked order as the only sample of a
    // microbatch.
    bool drop_last = true;
    // If true, the order is endless: position p is sample p mod dataset_size of epoch p div dataset_size, and each
    // epoch has its own order. No samples are left over then.
    bool repeat = false;
  };

  // Throws ConfigError if there is no sample, or if the batch sizes and the rank count do not fit.
  explicit GlobalBatchSampler(Options options);

  // Describes the order in which a loader reads the dataset that `samples` describes.
  [[nodiscard]] DataDescription describe(DataDescription samples) const;

  // Number of microbatches of one rank; nullopt if endless.
  [[nodiscard]] std::optional<std::int64_t> num_microbatches() const;

  // The number of padding samples, over all ranks.
  [[nodiscard]] std::int64_t num_padding() const;

  // sample_keys() returns the samples of this rank's microbatch `index`; samples() returns only their dataset indices.
  // Both are thread-safe.
  [[nodiscard]] std::vector<SampleKey> sample_keys(std::int64_t index) const;
  [[nodiscard]] std::vector<std::int64_t> samples(std::int64_t index) const;

  // Returns the number of this rank's microbatch `index` among the microbatches of all ranks in its step. A job with
  // one rank gives a microbatch with the same samples the same number if microbatch_size is 1 (sequential order) or
  // divides a rank's part of the step (chunked order).
  [[nodiscard]] std::int64_t number_in_step(std::int64_t index) const;

  // Returns the position after each rank has read `num_consumed` microbatches, as JSON for resume(). It is the same on
  // all ranks.
  [[nodiscard]] nlohmann::json state(std::int64_t num_consumed) const;

  // The inverse of state(): returns the number of consumed microbatches. Throws StateError that names what differs: the
  // dataset (compared by dataset_identity) and its order must be those of the saved run. Batch sizes and rank count may
  // differ if the position is the start of a global batch with both the saved and the new sizes.
  [[nodiscard]] std::int64_t resume(const nlohmann::json& state) const;

 private:
  [[nodiscard]] std::int64_t num_left() const;  // samples after the last full batch; 0 if dropped or endless
  [[nodiscard]] std::int64_t samples_in_step(std::int64_t step) const;       // on all ranks
  [[nodiscard]] std::int64_t microbatches_in_step(std::int64_t step) const;  // on one rank
  [[nodiscard]] SampleKey sample_at(std::int64_t position) const;            // in the global order

  Options options_;
  std::int64_t microbatches_per_step_;
};

}  // namespace d9d
