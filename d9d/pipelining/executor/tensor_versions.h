// Detects whether tensors have been modified in place since the object was constructed. Does not keep their memory
// alive.
//
// Example
//   const TensorVersions as_sent(leaves);
//   leaves.clear();
//   ...
//   if (as_sent.first_modified()) ...            // also if it was modified through a view
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
  // Inference tensors do not count modifications and are taken as unmodified.
  explicit TensorVersions(const std::vector<at::Tensor>& tensors);

  // Returns the index of the first tensor that was modified, directly or through a view; nullopt if there is none.
  [[nodiscard]] std::optional<std::size_t> first_modified() const;

 private:
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions_;
};

}  // namespace d9d
