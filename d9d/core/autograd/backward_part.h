// The parts of a microbatch's backward that a pipeline schedules.
#pragma once

#include <cstdint>

namespace d9d {

enum class BackwardPart : std::uint8_t {
  kWhole,   // B
  kInput,   // I: gradients of inputs; defers gradients of weights (deferred_gradients.h)
  kWeight,  // W: the deferred gradients of weights
};

}  // namespace d9d
