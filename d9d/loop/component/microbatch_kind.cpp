#include "d9d/loop/component/microbatch_kind.h"

#include <ATen/ATen.h>

namespace d9d::detail {

void KindWriter::write(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out_ << "undefined ";
    return;
  }
  has_kind_ = has_kind_ && tensor.device() == device_ && tensor.layout() == at::kStrided && !tensor.requires_grad();
  out_ << tensor.scalar_type() << tensor.sizes();
  if (tensor.layout() == at::kStrided) out_ << tensor.strides();
}

std::optional<std::string> KindWriter::kind() const { return has_kind_ ? std::optional(out_.str()) : std::nullopt; }

}  // namespace d9d::detail
