#include "d9d/peft/adopted_linear.h"

#include <memory>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

class Term final : public detail::AdoptedTerm {
 public:
  explicit Term(const LowRankAdapter<Linear>& low_rank) : adapter(low_rank) {
    register_module("lora_A", adapter.a);
    register_module("lora_B", adapter.b);
    if (adapter.dropout) register_module("lora_dropout", adapter.dropout);
  }
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const override { return adapter(input); }

  const LowRankAdapter<Linear> adapter;
};

ParameterPtr parameter_of(const detail::AdoptedModule& module, const std::string& name) {
  for (const auto& [own_name, parameter] : module.named_parameters()) {
    if (own_name == name) return parameter;
  }
  return nullptr;
}

}  // namespace

AdoptedLinear::AdoptedLinear(detail::AdoptedModule& module)
    : weight(parameter_of(module, "weight")), bias(parameter_of(module, "bias")), module_(module) {
  D9D_ASSERT(module.is_linear(), "a torch::nn::Linear");
}

std::optional<LowRankAdapter<Linear>> AdoptedLinear::adapter() const {
  const auto* const term = dynamic_cast<const Term*>(module_.term().get());
  return term == nullptr ? std::nullopt : std::optional(term->adapter);
}

void AdoptedLinear::add_adapter(const LowRankConfig& config) {
  const std::vector<std::int64_t>& shape = weight->global_shape();
  const ModulePtr<Linear> like = make_module<Linear>(LinearConfig{.in_features = shape[1], .out_features = shape[0]});
  like->to(weight->local().scalar_type());
  like->add_adapter(config);
  put_adapter(like->take_adapter());
}

void AdoptedLinear::put_adapter(const LowRankAdapter<Linear>& adapter) {
  module_.set_term(std::make_shared<Term>(adapter));
}

LowRankAdapter<Linear> AdoptedLinear::take_adapter() {
  LowRankAdapter<Linear> taken = *adapter();
  module_.set_term(nullptr);
  return taken;
}

}  // namespace d9d
