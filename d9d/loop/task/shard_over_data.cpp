#include "d9d/loop/task/shard_over_data.h"

#include <algorithm>
#include <map>
#include <string>

#include "d9d/base/check.h"
#include "d9d/loop/task/replicate_over_data.h"
#include "d9d/modules/adopt.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

namespace d9d {

void shard_over_data(const DistContext& context, const std::shared_ptr<Module>& model,
                     const std::vector<std::shared_ptr<Module>>& units, const FsdpConfig& config) {
  check_only_data_parallel(context);
  const DeviceMesh& dense = context.mesh(MeshDomain::kDense);
  if (dense.axis_size("dp_cp_shard") == 1) {
    replicate_over_data(context, *model);
    return;
  }
  const auto runtime =
      std::make_shared<FsdpRuntime>(resolve_fsdp(config, context.mesh_parameters().pipeline_parallel),
                                    context.is_main_process() ? std::optional(context.log()) : std::nullopt);
  const std::vector<FsdpAxes> axes = {
      {.mesh = dense, .shard_axis = "dp_cp_shard", .replicate_axes = {"dp_replicate", "cp_replicate"}}};
  std::map<const Module*, std::string> names;
  model->for_each_module([&](const std::string& name, Module& module) { names.try_emplace(&module, name); });
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i] == nullptr) continue;  // an optional child that this model lacks
    const auto name = names.find(units[i].get());
    D9D_CHECK(name != names.end() && !name->second.empty(), ConfigError,
              "[loop::shard_over_data] expected modules below the model as units, got another as unit ", i,
              ". Register it with register_module(), and name children, not the model.");
    const auto again = std::find(units.begin(), units.begin() + static_cast<std::ptrdiff_t>(i), units[i]);
    D9D_CHECK(again == units.begin() + static_cast<std::ptrdiff_t>(i), ConfigError,
              "[loop::shard_over_data] expected each unit once, got ", name->second, " as units ",
              again - units.begin(), " and ", i, ". Leave out one of them, also where the model uses it twice.");
    parallelize_fsdp(runtime, {.name = name->second, .modules = {units[i]}, .axes = axes});
  }
  const auto is_left = [](const auto& named) { return !has_flat_shard(named.second->placements()); };
  if (std::ranges::any_of(model->named_parameters(), is_left)) {
    parallelize_fsdp(runtime, {.name = "model", .modules = {model}, .axes = axes, .stays_gathered = true});
  }
  broadcast_buffers(*model, context.mesh(MeshDomain::kBatch).slice({"dp"}));
}

}  // namespace d9d
