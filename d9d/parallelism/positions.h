#pragma once

#include <cstdint>

namespace d9d {

// The dim that context and sequence parallelism shard: the positions S of [B, S, ...].
inline constexpr std::int64_t kPositions = 1;

}  // namespace d9d
