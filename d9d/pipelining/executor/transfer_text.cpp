#include "d9d/pipelining/executor/transfer_text.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

std::string transfer_text(const std::vector<at::Tensor>& leaves) {
  std::string text;
  for (const at::Tensor& leaf : leaves) {
    text += text.empty() ? "" : ", ";
    text += leaf.defined() ? cat(leaf.scalar_type(), " ", leaf.sizes()) : "an undefined tensor";
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace d9d
