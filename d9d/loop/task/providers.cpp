#include "d9d/loop/task/providers.h"

#include <set>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/models/legacy_names.h"
#include "d9d/peft/adapted_model.h"
#include "d9d/peft/merged_on_the_way.h"

namespace d9d {

AnyModelProvider::~AnyModelProvider() = default;

std::optional<PeftConfig> AnyModelProvider::adapters() const { return std::nullopt; }

void AnyModelProvider::parallelize_model_stage(const DistContext& context, const PipelineStageInfo& /*stage*/,
                                               Module& module) {
  replicate_over_data(context, module);
}

StateMapper AnyModelProvider::map_source_checkpoint(const HuggingFaceDirectory& source, const Module& module) {
  return own_names(module, source.names());
}

StateMapper AnyModelProvider::map_source_adapters(const PeftFolder& source, const Module& /*module*/) {
  throw ConfigError(
      cat("[loop::model_stage] expected a provider that reads adapters of Hugging Face peft, got one that "
          "does not, for '",
          source.path(), "'. Override ModelProvider::map_source_adapters, or leave source_adapters out."));
}

ModelExport AnyModelProvider::prepare_export(const Module& module) {
  std::set<std::string> names;
  const std::set<std::string> adapters = adapter_parameters(module);
  for (const auto& [name, tensor] : module.state_dict()) {
    if (!adapters.contains(name)) names.insert(name);
  }
  const AdaptedModel adapted = adapters_of(module);
  for (const auto& [stored, others] : adapted.untied) names.insert(others.begin(), others.end());
  return {.mapper = merged_on_the_way(adapted, mapper::identities(names))};
}

void AnyModelProvider::register_events(const DistContext& /*context*/, EventBus& /*events*/) {}

nlohmann::json AnyModelProvider::dump_hparams() const { return nlohmann::json::object(); }

nlohmann::json hparams_of(const AnyModelProvider& provider) {
  nlohmann::json hparams = provider.dump_hparams();
  if (const auto method = provider.adapters()) hparams["adapters"] = write_record(*method);
  return hparams;
}

std::optional<double> AnyModelProvider::flops_per_token() const { return std::nullopt; }

}  // namespace d9d
