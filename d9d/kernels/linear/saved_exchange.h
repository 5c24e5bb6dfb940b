// Keeps an exchange of rows from an operator's forward to its backward.
#pragma once

#include <string>

#include "d9d/kernels/linear/row_exchange.h"

namespace torch::autograd {
struct AutogradContext;
}  // namespace torch::autograd

namespace d9d::kernels::detail {

// Does nothing for null.
void save_exchange(torch::autograd::AutogradContext* context, const std::string& name, const RowExchangePtr& exchange);
// Null if none was saved.
[[nodiscard]] RowExchangePtr saved_exchange(torch::autograd::AutogradContext* context, const std::string& name);

}  // namespace d9d::kernels::detail
