#include "d9d/loop/component/model_stage_factory.h"

#include "d9d/core/dtype/scalar_type.h"

namespace d9d {

void check_late_initialized(const Module& module) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    D9D_CHECK(parameter->local().is_meta(), StateError,
              "[loop::model_stage] expected a model without storage, got values in ", name,
              ". Build it on the meta device: leave materialize() and reset_parameters() to the loop.");
  }
}

void check_gradient_dtype(const Module& module, const GradientManagerConfig& config) {
  if (!config.grad_dtype) return;
  for (const auto& [name, parameter] : module.named_parameters()) {
    D9D_CHECK(parameter->local().scalar_type() == to_scalar_type(*config.grad_dtype), ConfigError,
              "[config] trainer.gradient_manager.grad_dtype = ", enum_name(*config.grad_dtype), " with ", name, " in ",
              c10::toString(parameter->local().scalar_type()),
              ": gradients in another dtype than their parameter are not built in this version. Set it to null.");
  }
}

RandomClockPtr share_random_clock(Module& module, const TrainerConfig& config) {
  auto clock =
      std::make_shared<RandomClock>(RandomClock{.base_seed = static_cast<std::uint64_t>(config.determinism.base_seed)});
  module.set_random_clock(clock);
  return clock;
}

}  // namespace d9d
