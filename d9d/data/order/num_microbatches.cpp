#include "d9d/data/order/num_microbatches.h"

#include "d9d/base/check.h"

namespace d9d {

std::int64_t num_microbatches_for_global_batch(const BatchSizes& sizes) {
  const auto& [data_parallel_size, global_batch_size, microbatch_size] = sizes;
  D9D_CHECK(data_parallel_size > 0 && global_batch_size > 0 && microbatch_size > 0, ConfigError,
            "[data::num_microbatches] expected sizes > 0, got data_parallel_size = ", data_parallel_size,
            ", global_batch_size = ", global_batch_size, ", microbatch_size = ", microbatch_size,
            ". Correct the sizes of the batch; in a job they are data.global_batch_size and data.microbatch_size.");
  const bool is_divisible =  // divides by one factor after the other, as their product might overflow
      global_batch_size % microbatch_size == 0 && global_batch_size / microbatch_size % data_parallel_size == 0;
  D9D_CHECK(
      is_divisible, ConfigError,
      "[data::num_microbatches] expected global_batch_size to be divisible by data_parallel_size * microbatch_size = ",
      data_parallel_size, " * ", microbatch_size, ", got ", global_batch_size,
      ". Change one of the three; in a job they are data.global_batch_size, data.microbatch_size and "
      "mesh.data_parallel_replicate * mesh.data_parallel_shard.");
  return global_batch_size / microbatch_size / data_parallel_size;
}

}  // namespace d9d
