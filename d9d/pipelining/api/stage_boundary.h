// The two sides of a pipeline stage.
#pragma once

#include <cstdint>

namespace d9d {

enum class StageBoundary : std::uint8_t {
  kIncoming,  // to the stage before
  kOutgoing,  // to the next stage
};

}  // namespace d9d
