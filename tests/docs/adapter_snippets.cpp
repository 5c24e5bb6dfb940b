// Code that is shown in docs/adapters.md but not part of a program: compiled with the library, never run.
// tools/check_snippets.py checks that the page agrees with it.
#include <iostream>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/loop/task/providers.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/magnitudes.h"
#include "d9d/peft/merge.h"

namespace adapter_pages {

struct Provider : d9d::AnyModelProvider {
  std::optional<d9d::PeftConfig> adapters() const override {
    return d9d::StackConfig{
        .methods = {d9d::LoraConfig{.module_name_pattern = ".*_proj", .params = {.r = 8, .alpha = 16.0}},
                    d9d::FullTuneConfig{.module_name_pattern = ".*norm"}}};
  }
};

void adapt(const d9d::ModulePtr<d9d::Module>& model) {
  const d9d::PeftConfig method = d9d::peft_method_from_config(
      {{"kind", "dora"}, {"module_name_pattern", ".*_proj"}, {"params", {{"r", 8}, {"alpha", 16}, {"dropout", 0.0}}}});
  const d9d::PeftInjection injected = d9d::inject_peft(method, *model);  // on the meta device, before parallelize_*()
  std::cout << injected.trained.size() << " parameters are trained\n";
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/1);
  // ... load the model's weights
  d9d::begin_magnitudes(*model);  // of DoRA alone, from these weights
  // ... train
  d9d::MergedPeft merged = d9d::merge_peft(*model);  // W += scale * B A, rounded once; no adapters are left
  model->eval();                                     // ... evaluate, or export
  merged.unmerge();                                  // bit for bit as before
}

}  // namespace adapter_pages
