// The keys of "data" for batching and loading. Every job has them, also one with a custom dataset.
//
// Example
//   {"global_batch_size": 64, "microbatch_size": 8, "num_workers": 4, "shuffle": true}
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/base/record.h"
#include "d9d/data/order/shard_indexing_mode.h"

namespace d9d {

struct AutoDataConfig {
  std::int64_t global_batch_size = 1;  // samples of one optimiser step over all ranks
  std::int64_t microbatch_size = 1;    // samples of one forward pass on one rank
  std::int64_t num_workers = 0;        // 0: samples are read by the training thread
  // Whether rank r of n takes every n-th sample of a global batch or its r-th part.
  ShardIndexingMode shard_indexing_mode = ShardIndexingMode::kSequential;
  bool shuffle = false;  // in another order each epoch, by the seed of the job
  // Whether the samples after the last full global batch are dropped. null: true for training; false for an evaluation
  // set (whole_set()), except with the view "streamed", which always drops them.
  std::optional<bool> drop_last = {};
  bool pin_memory = true;           // batches are in pinned memory if ranks are on GPUs
  bool persistent_workers = false;  // refused without workers, which live as long as the data in any case
  std::optional<std::int64_t> prefetch_factor = {};  // batches that each worker reads ahead; null: 2
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

extern template const ValueType& json_type<AutoDataConfig>();

}  // namespace d9d
