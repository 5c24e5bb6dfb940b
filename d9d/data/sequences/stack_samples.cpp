#include "d9d/data/sequences/stack_samples.h"

#include <ATen/ops/stack.h>

#include "d9d/base/check.h"

namespace d9d::detail {

std::vector<at::Tensor> stack_leaves(const std::vector<std::vector<std::pair<std::string, at::Tensor>>>& samples) {
  D9D_CHECK(!samples.empty(), ConfigError, "[data::stack_samples] Cannot stack 0 samples. Pass at least one.");
  std::vector<at::Tensor> stacked;
  for (std::size_t leaf = 0; leaf < samples.front().size(); ++leaf) {
    const auto& [path, first] = samples.front()[leaf];
    const std::string name = path.empty() ? "the tensor" : path;
    std::vector<at::Tensor> column;
    for (const auto& sample : samples) {
      const at::Tensor& tensor = sample[leaf].second;
      D9D_CHECK(tensor.defined(), ConfigError, "[data::stack_samples] expected values in ", name,
                ", got none in sample ", column.size(), " of the batch. Fill it where the dataset makes the sample.");
      D9D_CHECK(tensor.sizes() == first.sizes() && tensor.scalar_type() == first.scalar_type(), ConfigError,
                "[data::stack_samples] expected ", name, " to be ", first.scalar_type(), " ", first.sizes(),
                " like that of sample 0, got ", tensor.scalar_type(), " ", tensor.sizes(), " in sample ", column.size(),
                " of the batch. Pad it, or write a collate of your own.");
      column.push_back(tensor);
    }
    stacked.push_back(at::stack(column));
  }
  return stacked;
}

}  // namespace d9d::detail
