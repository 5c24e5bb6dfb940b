// What launchers do in a build without CUDA (the files no_cuda.cpp): they throw ConfigError.
#pragma once

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

[[noreturn]] inline void refuse_without_cuda(const char* op) {
  throw ConfigError(
      cat("[kernels::", op, "] expected a build with CUDA, got one without. Build where nvcc is on PATH."));
}

}  // namespace d9d::kernels::detail
