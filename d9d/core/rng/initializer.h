// The initial values of a parameter or buffer: a rule that fills a local tensor from element-addressed random numbers.
//
// Example
//   register_parameter("weight", {.shape = {out, in}, .init = init::uniform(1.0 / std::sqrt(in))});
#pragma once

#include <functional>

#include "d9d/core/rng/element_random.h"

namespace d9d {

// Fills `local`, which is the part `window` of a tensor, in place. Local: it never communicates.
using Initializer = std::function<void(const at::Tensor& local, const ElementWindow& window, RandomStream stream)>;

namespace init {
[[nodiscard]] Initializer zeros();
[[nodiscard]] Initializer ones();
[[nodiscard]] Initializer uniform(double bound);  // U(-bound, bound)
[[nodiscard]] Initializer normal(double std);     // N(0, std^2)
}  // namespace init

}  // namespace d9d
