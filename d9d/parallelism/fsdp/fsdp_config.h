// How sharded parameters behave.
#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

namespace d9d {

enum class ReshardAfterForward {
  kExceptLast,  // but a unit that backward needs next stays gathered
  kAlways,
  kNever,  // units stay gathered until the gradients of the step are waited for
};

struct FsdpConfig {
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::kExceptLast;
  // Of gradients, on the wire too. None: float32, or float64 for float64 parameters.
  std::optional<c10::ScalarType> gradient_dtype = std::nullopt;
  // Keep the full gradients of all units until the last microbatch of the step, and reduce once. Default: reduce after
  // each microbatch, one full gradient of a unit at a time.
  bool reduce_on_last_microbatch = false;
};

}  // namespace d9d
