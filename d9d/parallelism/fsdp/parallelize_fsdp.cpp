#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

class FsdpHook final : public ModuleHook {
 public:
  FsdpHook(std::shared_ptr<FsdpRuntime> runtime, FsdpUnit& unit) : runtime_(std::move(runtime)), unit_(unit) {}

  void on_materialize(Module& /*module*/, at::Device device) override { runtime_->materialize(device); }
  void before_forward(Module& /*module*/, const TensorRefs& inputs) override { unit_.before_forward(inputs); }
  void after_forward(Module& /*module*/, const TensorRefs& outputs) override { unit_.after_forward(outputs); }
  std::shared_ptr<GradientReduction> gradient_reduction() const override { return runtime_; }

 private:
  std::shared_ptr<FsdpRuntime> runtime_;
  FsdpUnit& unit_;
};

std::size_t axes_of(const std::string& name, const Parameter& parameter, const std::vector<FsdpAxes>& axes) {
  if (parameter.mesh().axes().empty()) return 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].mesh == parameter.mesh()) return i;
  }
  throw ConfigError(cat("[parallelism::fsdp] expected axes of mesh '", parameter.mesh().name(), "', on which ", name,
                        " lies, got none. Add them to FsdpUnitSpec::axes."));
}

// Returns `axes` with additional replicate axes, over which the parameter's gradient is already Partial.
FsdpAxes with_partial_axes(const Parameter& parameter, FsdpAxes axes) {
  std::vector<std::string> replicate_axes;
  for (std::size_t i = 0; i < axes.mesh.axes().size(); ++i) {
    const auto& [name, size] = axes.mesh.axes()[i];
    const bool is_partial = i < parameter.gradient_placements().size() &&
                            std::holds_alternative<Partial>(parameter.gradient_placements()[i]) && size > 1;
    const bool is_listed = std::ranges::find(axes.replicate_axes, name) != axes.replicate_axes.end();
    if (name != axes.shard_axis && (is_listed || is_partial)) replicate_axes.push_back(name);
  }
  axes.replicate_axes = std::move(replicate_axes);
  return axes;
}

}  // namespace

void parallelize_fsdp(const std::shared_ptr<FsdpRuntime>& runtime, const FsdpUnitSpec& unit) {
  using Key =
      std::tuple<std::size_t, std::vector<std::string>, c10::ScalarType, std::optional<c10::ScalarType>, bool, bool>;
  std::map<Key, FlatGroup::NamedParameters> parameters;
  std::set<const Parameter*> seen;
  for (const auto& module : unit.modules) {
    for (const auto& [name, parameter] : module->named_parameters()) {
      D9D_CHECK(parameter->local().is_meta(), StateError, "[parallelism::fsdp] expected ", unit.name, ".", name,
                " without storage, got values. Parallelise before materialize().");
      if (has_flat_shard(parameter->placements()) || !seen.insert(parameter.get()).second) continue;
      const std::size_t index = axes_of(name, *parameter, unit.axes);
      const bool is_apart = std::ranges::find(unit.apart, parameter) != unit.apart.end();
      const Key key = {index,
                       with_partial_axes(*parameter, unit.axes[index]).replicate_axes,
                       parameter->local().scalar_type(),
                       parameter->stored_dtype(),
                       parameter->requires_grad(),
                       is_apart};
      parameters[key].emplace_back(cat(unit.name, ".", name), parameter);
    }
  }
  D9D_CHECK(!parameters.empty(), ConfigError, "[parallelism::fsdp] expected parameters to shard in unit '", unit.name,
            "', got none that belong to no other unit. Of nested modules only one can be a unit.");
  std::vector<std::unique_ptr<FlatGroup>> groups;
  for (auto& [key, members] : parameters) {
    // Biases come last, so that the weights of linears that have one input stay adjacent (kernels/linear/linear.h).
    std::ranges::stable_partition(members, [](const auto& member) { return !member.first.ends_with(".bias"); });
    FsdpAxes axes = unit.axes[std::get<std::size_t>(key)];
    axes.replicate_axes = std::get<std::vector<std::string>>(key);
    groups.push_back(std::make_unique<FlatGroup>(std::move(members), std::move(axes)));
  }
  FsdpUnit& added = runtime->add_unit(unit.name, std::move(groups), unit.stays_gathered);
  for (const auto& module : unit.modules) module->add_hook(std::make_shared<FsdpHook>(runtime, added));
}

}  // namespace d9d
