#include "d9d/pipelining/executor/tensor_versions.h"

namespace d9d {

TensorVersions::TensorVersions(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    versions_.emplace_back(counter, counter.enabled() ? counter.current_version() : 0);
  }
}

std::optional<std::size_t> TensorVersions::first_modified() const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    const auto& [counter, version] = versions_[i];
    if (counter.enabled() && counter.current_version() != version) return i;
  }
  return std::nullopt;
}

}  // namespace d9d
