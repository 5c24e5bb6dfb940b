// What exports of a job contain.
//
// Example
//   {"adapters": "peft", "dtype": "float32"}
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"
#include "d9d/model_state/model_export.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {

enum class ExportedAdapters { kMerged, kPeft };
constexpr auto enum_names(ExportedAdapters) {
  return std::to_array<EnumName<ExportedAdapters>>(
      {{ExportedAdapters::kMerged, "merged"}, {ExportedAdapters::kPeft, "peft"}});
}

// What the exports of a job contain.
struct ExportConfig {
  // merged: the whole model, with adapters merged into its weights. peft: the adapters alone, for Hugging Face peft and
  // vLLM.
  ExportedAdapters adapters = ExportedAdapters::kMerged;
  std::optional<Dtype> dtype = {};  // of what is exported; null: the dtype that the model computes in

  static constexpr auto fields() {
    return record<ExportConfig>(defaulted("adapters", &ExportConfig::adapters),
                                defaulted("dtype", &ExportConfig::dtype));
  }
};

// Local. The export of a model with adapters. plain: that of the model without them. dtype: of floating-point tensors.
// base: the model that adapters belong to, a folder or a name of the hub. Throws ConfigError as peft_export().
[[nodiscard]] ModelExport export_of_adapted(ExportedAdapters format, const AdaptedModel& adapted,
                                            const ModelExport& plain, Dtype dtype,
                                            const std::optional<std::string>& base);

// Local. Whether the model has had these adapters, which merge_peft() took away. module: of some stages.
[[nodiscard]] bool is_merged(const AdaptedModel& adapted, const Module& module);

}  // namespace d9d
