#include "d9d/loop/job/reference_model.h"

#include <algorithm>
#include <set>
#include <string>
#include <variant>

#include "d9d/base/check.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {
namespace {

struct TrainedParts {
  bool has_adapters = false;
  bool begins_adapted = false;  // source_checkpoint has values of the adapters
  // The name of what training changes beside adapters, a trained parameter or a buffer such as the bias that balances
  // experts; empty: none.
  std::string other = {};
};

bool has_values_of(const std::set<std::string>& adapters, const std::optional<std::filesystem::path>& source) {
  const auto saved = source ? checkpoint_at(*source) : std::nullopt;
  if (!saved) return false;
  const NamedTensors tensors = saved->tensors(kModelPrefix);
  return std::ranges::any_of(adapters, [&](const std::string& name) { return tensors.find(name).has_value(); });
}

// Collective over the job: ranks have other stages.
TrainedParts trained_parts(const ReferenceParts& parts, const Module& module) {
  const std::set<std::string> adapters = adapter_parameters(module);
  TrainedParts own{.has_adapters = !adapters.empty(),
                   .begins_adapted = has_values_of(adapters, parts.config.model_stage_factory.source_checkpoint)};
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (own.other.empty() && parameter->requires_grad() && !adapters.contains(name)) own.other = name;
  }
  for (const auto& [name, buffer] : module.named_buffers()) {
    if (own.other.empty() && buffer->is_persistent && buffer->local.is_floating_point()) own.other = name;
  }
  const nlohmann::json written = {own.has_adapters, own.begins_adapted, own.other};
  for (const nlohmann::json& of_rank : all_gather_object(written, parts.context.mesh(MeshDomain::kBatch))) {
    own.has_adapters = own.has_adapters || of_rank[0].get<bool>();
    own.begins_adapted = own.begins_adapted || of_rank[1].get<bool>();
    if (own.other.empty()) own.other = of_rank[2].get<std::string>();
  }
  return own;
}

bool is_without_adapters(ReferenceWeights weights, const ReferenceParts& parts, const Module& module) {
  if (weights == ReferenceWeights::kFrozenCopy) return false;
  const auto [has_adapters, begins_adapted, other] = trained_parts(parts, module);
  if (weights == ReferenceWeights::kAuto) {
    return has_adapters && !begins_adapted && other.empty() && !parts.config.model_stage_factory.source_adapters;
  }
  D9D_CHECK(has_adapters, ConfigError,
            "[loop::reference] expected a model with adapters for the reference "
            "\"without_adapters\", got one without. Take \"frozen_copy\", or give it adapters.");
  D9D_CHECK(other.empty(), ConfigError,
            "[loop::reference] expected training to change adapters alone with the reference "
            "\"without_adapters\", got '",
            other, "', which would change the reference. Take \"frozen_copy\".");
  return true;
}

}  // namespace

void check_reference(const TrainerConfig& config, const AnyTask& task) {
  if (!task.reference()) return;
  D9D_CHECK(!config.cuda_graph, ConfigError,
            "[loop::reference] expected trainer.cuda_graph = null for a task with a "
            "reference model, whose forwards in graphs are not built in this version, got graphs. Set it to null.");
  D9D_CHECK(!std::holds_alternative<AutoScheduleConfig>(config.pipelining.schedule), ConfigError,
            "[loop::reference] expected the name of a schedule as trainer.pipelining.schedule for a task with a "
            "reference model, whose forwards are not measured in this version, got auto. Name one.");
  D9D_CHECK(!config.memory_budget, ConfigError,
            "[loop::reference] expected trainer.memory_budget = null for a task with a reference model, whose forwards "
            "are not measured in this version, got a budget. Set model_provider.checkpointing instead.");
}

std::optional<ReferenceModel> build_reference(const ReferenceParts& parts, const Module& module) {
  const std::optional<ReferenceWeights> weights = parts.task.reference();
  if (!weights) return std::nullopt;
  // An automatic choice depends on the source too.
  if (parts.saved && weights != ReferenceWeights::kWithoutAdapters) {
    check_source_of_reference(*parts.saved, parts.config);
  }
  ReferenceModel reference;
  const bool is_main = parts.context.is_main_process();
  if (is_without_adapters(*weights, parts, module)) {
    if (is_main) parts.context.log().info("reference: the model without its adapters");
    return reference;
  }
  if (is_main) parts.context.log().info("reference: a frozen copy of the model as the job began");
  reference.copy = build_model_stages(parts.context, parts.config, parts.provider, parts.placement, parts.initialize,
                                      StagesOf::kFrozenCopy);
  for (const auto& stage : reference.copy) {
    stage->module->eval();
    stage->module->set_random_clock(parts.clock);
  }
  return reference;
}

}  // namespace d9d
