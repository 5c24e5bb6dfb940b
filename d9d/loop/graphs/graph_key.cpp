#include "d9d/loop/graphs/graph_key.h"

#include <ATen/ATen.h>

namespace d9d::detail {

void GraphKeyWriter::write(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out_ << "undefined ";
    return;
  }
  has_key_ = has_key_ && tensor.device() == device_ && tensor.layout() == at::kStrided && !tensor.requires_grad();
  out_ << tensor.scalar_type() << tensor.sizes();
  if (tensor.layout() == at::kStrided) out_ << tensor.strides();
}

std::optional<std::string> GraphKeyWriter::key() const { return has_key_ ? std::optional(out_.str()) : std::nullopt; }

}  // namespace d9d::detail
