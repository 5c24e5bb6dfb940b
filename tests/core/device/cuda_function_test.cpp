#include "d9d/core/device/cuda_function.h"

#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::cuda_function_test {
namespace {

// In a process of its own, since a library that is there brings the CUDA half of LibTorch.
[[noreturn]] void call_a_function_that_no_library_has() {
  constexpr CudaFunction<"d9d_no_such_function", int(const std::string&)> kMissing;
  try {
    std::exit(kMissing("text"));
  } catch (const Error& error) {
    std::cerr << error.what();
    std::exit(4);
  }
}

TEST(CudaFunction, That_no_library_has_is_an_error_that_names_it_or_the_library) {
  EXPECT_EXIT(call_a_function_that_no_library_has(), ::testing::ExitedWithCode(4),
              "d9d_no_such_function|libd9d_cuda.so");
}

}  // namespace
}  // namespace d9d::cuda_function_test
