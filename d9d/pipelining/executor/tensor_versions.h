// Tells whether tensors were modified in place since. Keeps none of their memory.
//
// Example
//   const TensorVersions as_sent(leaves);
//   leaves.clear();
//   ...
//   if (as_sent.first_modified()) ...            // by whoever has the memory, too
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

class TensorVersions {
 public:
  TensorVersions() = default;
  // Inference tensors, which count no modifications, stay as they are.
  explicit TensorVersions(const std::vector<at::Tensor>& tensors);

  // The index of the first that was modified, itself or a view of it.
  [[nodiscard]] std::optional<std::size_t> first_modified() const;

 private:
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions_;
};

}  // namespace d9d
