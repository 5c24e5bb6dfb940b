#include "d9d/peft/export_config.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "d9d/core/dtype/scalar_type.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/peft/merged_on_the_way.h"
#include "d9d/peft/peft_export.h"

namespace d9d {

ModelExport export_of_adapted(ExportedAdapters format, const AdaptedModel& adapted, const ModelExport& plain,
                              Dtype dtype, const std::optional<std::string>& base) {
  ModelExport exported = plain;
  if (format == ExportedAdapters::kMerged) {
    exported.mapper = merged_on_the_way(adapted, plain.mapper, to_scalar_type(dtype));
    return exported;
  }
  PeftExport adapters = peft_export(adapted, plain.mapper, base);
  std::vector<StateMapper> mappers = std::move(adapters.magnitudes);
  mappers.push_back(mapper::in_dtype(adapters.mapper, to_scalar_type(dtype)));
  exported.mapper = mapper::parallel(std::move(mappers));
  exported.files.erase("config.json");  // with which transformers would take the folder for a model
  exported.files[kPeftConfig] = adapters.config.dump(2) + "\n";
  exported.only_file = kPeftWeights;
  exported.is_whole = false;
  exported.warnings = std::move(adapters.warnings);
  return exported;
}

bool is_merged(const AdaptedModel& adapted, const Module& module) {
  std::set<std::string> names;
  for (const AdaptedModule& each : adapted.modules) names.insert(each.name);
  bool is_bare = false;
  for_each_adapter_site(module, [&](const std::string& name, const Module&, const AdapterSite& site) {
    is_bare |= names.contains(name) && site.computes() && !site.has_adapter();
  });
  return is_bare;
}

}  // namespace d9d
