// Which part of a microbatch's backward runs.
#pragma once

#include <cstdint>

namespace d9d {

enum class BackwardPart : std::uint8_t {
  kWhole,   // B
  kInput,   // I: gradients of inputs; those of weights wait (deferred_gradients.h)
  kWeight,  // W: what waited
};

}  // namespace d9d
