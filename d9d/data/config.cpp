#include "d9d/data/config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

void AutoDataConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(global_batch_size % microbatch_size == 0, ConfigError, path,
            "expected global_batch_size to be divisible by microbatch_size = ", microbatch_size,
            ", got global_batch_size = ", global_batch_size, ". Change one of the two.");
  D9D_CHECK(num_workers > 0 || !persistent_workers, ConfigError, path,
            "expected num_workers >= 1 with persistent_workers, got 0. Turn persistent_workers off.");
  D9D_CHECK(num_workers > 0 || !prefetch_factor, ConfigError, path,
            "expected num_workers >= 1 with a prefetch_factor, got 0. Set prefetch_factor to null.");
}

template const ValueType& json_type<AutoDataConfig>();
template const ValueType& json_type<SourceConfig>();
template const ValueType& json_type<DataConfig>();

}  // namespace d9d
