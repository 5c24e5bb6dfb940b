#include "d9d/data/build/auto_data_config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

void AutoDataConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(global_batch_size % microbatch_size == 0, ConfigError, path / "global_batch_size",
            "expected a multiple of ", (path / "microbatch_size").keys, " = ", microbatch_size,
            ", times mesh.data_parallel_replicate * mesh.data_parallel_shard, got ", global_batch_size,
            ". Change one of them.");
  D9D_CHECK(num_workers > 0 || !persistent_workers, ConfigError, path,
            "expected num_workers >= 1 with persistent_workers, got 0. Turn persistent_workers off.");
  D9D_CHECK(num_workers > 0 || !prefetch_factor, ConfigError, path,
            "expected num_workers >= 1 with a prefetch_factor, got 0. Set prefetch_factor to null.");
}

template const ValueType& json_type<AutoDataConfig>();

}  // namespace d9d
