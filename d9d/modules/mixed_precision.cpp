#include "d9d/modules/mixed_precision.h"

#include <vector>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/modules/stale_values.h"

namespace d9d {
namespace {

// Rounds parameters that FSDP does not shard; FSDP rounds its own before it gathers them. It sums no gradients; it is a
// GradientReduction in order to be called where steps begin and end.
class MasterWeights final : public GradientReduction {
 public:
  void set_parameters(const Module& model) {
    parameters_.clear();
    for (const auto& [name, parameter] : model.named_parameters()) {
      parameters_.push_back(parameter);
    }
  }
  void update() {
    if (!is_in_step_) update_local(parameters_);
  }
  void update_between_steps() {
    if (is_in_step_) return;
    std::vector<ParameterPtr> stale;
    for (const ParameterPtr& parameter : parameters_) {
      if (has_flat_shard(parameter->placements())) continue;  // local() may have no memory
      if (is_stale(parameter->local(), parameter->stored())) stale.push_back(parameter);
    }
    update_local(stale);
  }

  bool sums_gradients() const override { return false; }
  void begin_pass(const StagePass& /*pass*/) override {
    update();
    is_in_step_ = true;
  }
  void end_pass() override {}
  void begin_evaluation() override {
    update();
    is_in_step_ = true;
  }
  void end_evaluation() override { is_in_step_ = false; }
  void finish() override { is_in_step_ = false; }
  void clear() override { is_in_step_ = false; }
  void abandon() override { is_in_step_ = false; }

 private:
  std::vector<ParameterPtr> parameters_;
  bool is_in_step_ = false;
};

class MasterWeightsHook final : public ModuleHook {
 public:
  void on_materialize(Module& module, at::Device /*device*/) override { weights_->set_parameters(module); }
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {
    if (!is_recomputing()) weights_->update_between_steps();
  }
  void after_forward(Module& /*module*/, const TensorRefs& /*outputs*/) override {}
  std::shared_ptr<GradientReduction> gradient_reduction() const override { return weights_; }

 private:
  std::shared_ptr<MasterWeights> weights_ = std::make_shared<MasterWeights>();
};

}  // namespace

void keep_parameters_in(const std::shared_ptr<Module>& model, at::ScalarType dtype) {
  for (const auto& [name, parameter] : model->named_parameters()) {
    if (!parameter->requires_grad()) continue;
    const at::ScalarType own = parameter->local().scalar_type();
    D9D_CHECK(at::promote_types(own, dtype) == dtype, ConfigError, "[modules::mixed_precision] expected a dtype that ",
              "holds the values of ", name, " (", own, "), got ", dtype,
              ". Keep parameters in a wider dtype than layers compute in "
              "(trainer.model_stage_factory.master_dtype).");
    if (dtype != own) parameter->set_stored_dtype(dtype);
  }
  model->add_hook(std::make_shared<MasterWeightsHook>());
}

void round_parameters(Module& model) {
  for (const auto& reduction : gradient_reductions(model)) {
    const auto weights = std::dynamic_pointer_cast<MasterWeights>(reduction);
    if (weights != nullptr) weights->update_between_steps();
  }
}

}  // namespace d9d
