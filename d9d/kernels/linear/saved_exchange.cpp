#include "d9d/kernels/linear/saved_exchange.h"

#include <utility>

#include <torch/csrc/autograd/custom_function.h>

namespace d9d::kernels::detail {
namespace {

struct SavedExchange final : torch::CustomClassHolder {
  explicit SavedExchange(RowExchangePtr exchange) : value(std::move(exchange)) {}
  const RowExchangePtr value;
};

}  // namespace

void save_exchange(torch::autograd::AutogradContext* context, const std::string& name, const RowExchangePtr& exchange) {
  if (!exchange) return;
  context->saved_data[name] = c10::IValue::make_capsule(c10::make_intrusive<SavedExchange>(exchange));
}

RowExchangePtr saved_exchange(torch::autograd::AutogradContext* context, const std::string& name) {
  const auto found = context->saved_data.find(name);
  if (found == context->saved_data.end()) return nullptr;
  return c10::static_intrusive_pointer_cast<SavedExchange>(found->second.toCapsule())->value;
}

}  // namespace d9d::kernels::detail
