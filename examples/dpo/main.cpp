// Trains a published model, or an export of ours, on preferences: pairs of a chosen and a rejected answer (DPO). All of
// its weights are trained, or adapters (LoRA). Its family is that of the folder's config.json.
//
//   dpo examples/dpo/lora.json [key.path=value ...]
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "d9d/core/launch/launch.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/dpo/dpo_job_config.h"
#include "d9d/loop/language_model/dpo/dpo_task.h"
#include "d9d/loop/language_model/model_tokenizer.h"
#include "d9d/loop/language_model/staged_decoder.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/families.h"

namespace {

// Trains, exports, and prints samples of what the model writes.
template <class Parameters>
void train(const d9d::ModelFamily<Parameters>& family, const d9d::DpoJobConfig<Parameters>& config,
           d9d::DistContext& context) {
  const auto& source = config.trainer.model_stage_factory.source_checkpoint;
  const auto sizes = d9d::causal_lm_sizes(family, config.model_provider, source);
  if (source) d9d::check_tokenizer(context, config.data, *source);
  auto files = d9d::tokenizer_files(context, config.data,
                                    {.source_checkpoint = source,
                                     .tokenizer = config.sample ? config.sample->tokenizer : std::nullopt,
                                     .max_positions = sizes.max_position_ids});
  const auto export_lock = d9d::prepare_export(context, config.export_to, files, config.trainer);
  d9d::DpoTask task(context, config.dpo, {.tells_padding = family.has_experts});
  d9d::CausalLMProvider<Parameters, d9d::DpoTypes> model(family, config.model_provider, sizes, std::move(files),
                                                         source);
  const d9d::VocabularySplits vocabulary{.sizes = sizes.split_vocab_size, .order = sizes.split_vocab_order};
  const d9d::TokenLimits limits{.vocabulary_size = vocabulary.total(), .max_positions = sizes.max_position_ids};
  std::optional<d9d::TextSamples> samples;  // built before training, so that mistakes in it end the job now
  if (config.sample) samples.emplace(*config.sample, config.data, limits);
  const std::int64_t seed = config.trainer.determinism.base_seed;
  auto data = d9d::pair_data_provider(config.data, limits, seed);
  std::map<std::string, d9d::AutoDataProvider<d9d::TokenBatch>> evaluation_data;
  d9d::EvaluationData<d9d::DpoTypes> evaluation_sets;
  for (const auto& [name, set] : config.evaluation_data) {
    const auto added = evaluation_data.emplace(name, d9d::pair_data_provider(d9d::whole_set(set), limits, seed));
    evaluation_sets.emplace(name, &added.first->second);
  }
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);

  d9d::Trainer<d9d::DpoTypes> trainer(context, config.trainer,
                                      {.task = task,
                                       .model = model,
                                       .data = data,
                                       .optimizer = optimizer,
                                       .lr_scheduler = lr_scheduler,
                                       .evaluation = evaluation_sets});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  trainer.export_to(config.export_to);
  if (context.is_main_process()) context.log().info("exported to ", config.export_to.string());
  if (!samples) return;
  const auto decoder = d9d::staged_decoder(context, trainer.placement(), trainer.stages(),
                                           {.method = config.trainer.pipelining.messages});
  samples->write(context, *decoder, std::cout);
}

// The folder that the command line's configuration names as trainer.model_stage_factory.source_checkpoint.
std::string source_of(const d9d::ConfigCommand& command) {
  const d9d::Json config = d9d::read_config(command, {});
  const d9d::Json::json_pointer key("/trainer/model_stage_factory/source_checkpoint");
  D9D_CHECK(
      config.contains(key) && config[key].is_string(), d9d::ConfigError, "[config] ", command.file.string(),
      ": trainer.model_stage_factory.source_checkpoint: expected the folder of the model to train, got none. Name "
      "one that has a config.json.");
  return config[key];
}

template <class Parameters>
int run(const d9d::ModelFamily<Parameters>& family, int argc, char** argv) {
  using Config = d9d::DpoJobConfig<Parameters>;
  return d9d::launch<Config>(argc, argv,
                             [&](const Config& config, d9d::DistContext& context) { train(family, config, context); });
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  const int of_errors = d9d::run_reporting_errors([&] {
    const d9d::ConfigCommand command = d9d::parse_config_command(argc, argv);
    if (command.wants_help || command.wants_schema) {
      exit_code = run(d9d::kQwen3Dense, argc, argv);
      return;
    }
    const d9d::HuggingFaceDirectory source(source_of(command));
    d9d::visit_family_of(source.read_config(), [&](const auto& family) { exit_code = run(family, argc, argv); });
  });
  return of_errors != 0 ? of_errors : exit_code;
}
