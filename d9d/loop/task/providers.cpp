#include "d9d/loop/task/providers.h"

#include "d9d/models/legacy_names.h"

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

ModelExport AnyModelProvider::prepare_export(const Module& module) {
  return {.mapper = mapper::identities_of_module(module), .files = {}};
}

void AnyModelProvider::register_events(const DistContext& /*context*/, EventBus& /*events*/) {}

nlohmann::json AnyModelProvider::dump_hparams() const { return nlohmann::json::object(); }

std::optional<double> AnyModelProvider::flops_per_token() const { return std::nullopt; }

}  // namespace d9d
