// The tensors of a transfer as text: "Float [2, 128, 64], Float []".
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

[[nodiscard]] std::string transfer_text(const std::vector<at::Tensor>& leaves);

}  // namespace d9d
