// The smallest program on d9d: a tensor on the best device of this machine.
#include <iostream>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_runtime.h"

int main() {
  try {
    const at::Device device = d9d::load_cuda() ? at::kCUDA : at::kCPU;
    const auto sum = at::ones({2, 3}, device).sum().item<double>();
    D9D_CHECK(sum == 6, d9d::StateError, "[consumer] expected the sum of six ones to be 6, got ", sum, ".");
    std::cout << "consumer: sum = " << sum << "\n";
  } catch (const d9d::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
