// The two sides of a pipeline stage.
#pragma once

#include <cstdint>

namespace d9d {

enum class StageBoundary : std::uint8_t {
  kIncoming,  // with the stage before
  kOutgoing,  // with the next stage
};

}  // namespace d9d
