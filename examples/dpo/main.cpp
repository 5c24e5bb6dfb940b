// Trains a published model, or an export of ours, on preferences: pairs of a chosen and a rejected answer (DPO). All of
// its weights are trained, or adapters (LoRA). Its family is that of the folder's config.json.
//
//   dpo examples/dpo/lora.json [key.path=value ...]
#include "d9d/loop/language_model/dpo/dpo_job_config.h"
#include "d9d/loop/language_model/dpo/dpo_task.h"

#include "examples/common/pretrain.h"
#include "examples/common/source_family.h"

namespace {

template <class Parameters>
int run(const d9d::ModelFamily<Parameters>& family, int argc, char** argv) {
  using Config = d9d::DpoJobConfig<Parameters>;
  return d9d::launch<Config>(argc, argv, [&](const Config& config, d9d::DistContext& context) {
    d9d::DpoTask task(context, config.dpo, {.tells_padding = family.has_experts});
    examples::train(family, config, context, task, d9d::pair_data_provider);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run_for_source_family(argc, argv, [&](const auto& family) { return run(family, argc, argv); });
}
