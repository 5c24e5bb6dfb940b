// How the samples of each global batch are distributed over the data-parallel ranks.
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

enum class ShardIndexingMode {
  kSequential,  // rank r of n takes samples r, r + n, r + 2n, ... of each global batch
  kChunked,     // rank r takes the r-th contiguous part of each global batch
};
constexpr auto enum_names(ShardIndexingMode) {
  return std::to_array<EnumName<ShardIndexingMode>>(
      {{ShardIndexingMode::kSequential, "sequential"}, {ShardIndexingMode::kChunked, "chunked"}});
}

}  // namespace d9d
