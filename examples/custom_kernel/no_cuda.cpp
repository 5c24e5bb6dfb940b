// Replaces squared_relu_kernel.cu if nvcc is missing. Without a CUDA device the program does not call these functions.
#include "d9d/base/check.h"

#include "squared_relu_kernel.h"

namespace {
[[noreturn]] void refuse() { throw d9d::ConfigError("[example] built without nvcc. Install the CUDA toolkit."); }
}  // namespace

void launch_squared_relu(const float*, const float*, float*, std::int64_t, std::int64_t, CUstream_st*) { refuse(); }
void launch_squared_relu_grad_x(const float*, const float*, const float*, float*, std::int64_t, std::int64_t,
                                CUstream_st*) {
  refuse();
}
void launch_squared_relu_grad_weight(const float*, const float*, float*, std::int64_t, std::int64_t, CUstream_st*) {
  refuse();
}
