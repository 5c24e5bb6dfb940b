#include "d9d/base/check.h"
#include "d9d/core/rng/element_random_kernel.h"

namespace d9d::detail {

bool has_fill_random_kernel() { return false; }
void launch_fill_random(const FillRandomArgs& /*args*/, CUstream_st* /*stream*/) {
  throw InternalError("[bug] no kernel for random numbers in this build. Ask has_fill_random_kernel first.");
}

}  // namespace d9d::detail
