#include "d9d/modules/detect_non_finite.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return true;
  const at::NoGradGuard no_grad;
  return tensor.isfinite().all().item<bool>();
}

bool are_finite(const TensorRefs& tensors) {
  return std::ranges::all_of(tensors, [](const at::Tensor& tensor) { return is_finite(tensor); });
}

// " Its parameters {weight} have such values.", or nothing.
std::string broken_parameters(const Module& module) {
  std::string names;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!is_finite(parameter->local())) names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "" : cat(" Its parameters {", names, "} have such values.");
}

class NonFiniteHook final : public ModuleHook {
 public:
  explicit NonFiniteHook(std::string name) : name_(std::move(name)) {}

  void before_forward(Module& /*module*/, const TensorRefs& inputs) override {
    had_finite_inputs_ = are_finite(inputs);
  }
  void after_forward(Module& module, const TensorRefs& outputs) override {
    D9D_CHECK(are_finite(outputs), StateError,
              "[modules::detect_non_finite] expected finite values, got NaN or infinity "
              "in the output of ",
              name_, ", whose inputs ", had_finite_inputs_ ? "are finite." : "have such values too.",
              broken_parameters(module));
    for (const at::Tensor& output : outputs) {
      if (!output.requires_grad()) continue;
      output.register_hook([name = name_](const at::Tensor& gradient) {
        D9D_CHECK(is_finite(gradient), StateError,
                  "[modules::detect_non_finite] expected finite values, got NaN or "
                  "infinity in the gradient of the output of ",
                  name, ", which backward of what follows it computed.");
      });
    }
  }

 private:
  std::string name_;
  bool had_finite_inputs_ = true;  // of the current call; a nested call overwrites it
};

}  // namespace

void detect_non_finite(Module& module) {
  module.for_each_module([](const std::string& name, Module& each) {
    each.add_hook(std::make_shared<NonFiniteHook>(name.empty() ? "the model" : name));
  });
}

}  // namespace d9d
