// Helpers for jobs of toy_job.h whose loss is NaN, or which must not change anything.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/loop/run/toy_job.h"

namespace d9d::toy {

inline std::vector<at::Tensor> values_of(const Module& module) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : module.state_dict()) values.push_back(tensor.clone());
  return values;
}

inline bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

// A batch whose loss is NaN.
inline Batch poisoned() {
  Batch batch = samples(0, 2);
  batch.y.fill_(std::numeric_limits<double>::quiet_NaN());
  return batch;
}

}  // namespace d9d::toy
