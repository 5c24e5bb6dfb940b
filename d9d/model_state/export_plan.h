// Decides which outputs of a mapper are computed together, and to which file each is written. Used by exports whose
// writers are ranks (write_model_state.h) and by those whose writers are threads (convert_model_state.h).
//
// Example
//   for (const ExportShard& shard : plan_export({&group}, max_shard_bytes)) write(shard.units, shard.tensors);
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/model_state/tensor_source.h"

namespace d9d {

// Outputs that are computed and written together: one output, or all outputs of a group with functions.
struct ExportUnit {
  std::size_t group;  // its position among the groups
  std::vector<std::string> outputs;
};

struct ExportShard {
  std::vector<ExportUnit> units;
  std::vector<TensorSource> tensors;  // of the units, in their order; described only
};

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// The outputs of `groups`, in order, split into shards of at most `max_shard_bytes` (shard_of_each). Throws StateError
// for outputs that are distributed.
[[nodiscard]] std::vector<ExportShard> plan_export(const std::vector<const MappedGroup*>& groups,
                                                   std::int64_t max_shard_bytes);

}  // namespace d9d
