// How elements of several ranks are combined into one.
#pragma once

#include <cstdint>

namespace d9d {

enum class ReduceOp : std::uint8_t { kSum, kAvg, kMax, kMin };

[[nodiscard]] const char* to_string(ReduceOp op);  // "sum", "avg", "max", "min"

}  // namespace d9d
