// Converts a tensor to a vector of integers.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace d9d::test {

[[nodiscard]] inline std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.to(at::kLong).contiguous();
  return {dense.const_data_ptr<std::int64_t>(), dense.const_data_ptr<std::int64_t>() + dense.numel()};
}

}  // namespace d9d::test
