// The course of a job that trains a causal language model, whatever its family and its task: what a program of one's
// own would do.
#pragma once

#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "d9d/core/launch/launch.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/language_model/model_tokenizer.h"
#include "d9d/loop/language_model/pretrain_config.h"
#include "d9d/loop/language_model/staged_decoder.h"
#include "d9d/loop/language_model/text_samples.h"
#include "d9d/loop/run/trainer.h"

namespace examples {

// Trains, exports, and prints samples of what the model writes. data_provider: token_data_provider(), or another one of
// token batches with its arguments.
template <class Types, class Parameters, class Config, class DataProvider>
void train(const d9d::ModelFamily<Parameters>& family, const Config& config, d9d::DistContext& context,
           d9d::TrainTask<Types>& task, const DataProvider& data_provider) {
  const auto& source = config.trainer.model_stage_factory.source_checkpoint;
  const auto sizes = d9d::causal_lm_sizes(family, config.model_provider, source);
  if (source) d9d::check_tokenizer(context, config.data, *source);
  auto files = d9d::tokenizer_files(context, config.data,
                                    {.source_checkpoint = source,
                                     .tokenizer = config.sample ? config.sample->tokenizer : std::nullopt,
                                     .max_positions = sizes.max_position_ids});
  const auto export_lock = d9d::prepare_export(context, config.export_to, files, config.trainer);
  d9d::CausalLMProvider<Parameters, Types> model(family, config.model_provider, sizes, std::move(files), source);
  model.sequence_length = d9d::sequence_length_of(config.data);
  const d9d::VocabularySplits vocabulary{.sizes = sizes.split_vocab_size, .order = sizes.split_vocab_order};
  const d9d::TokenLimits limits{.vocabulary_size = vocabulary.total(), .max_positions = sizes.max_position_ids};
  std::optional<d9d::TextSamples> samples;  // built before training, so that mistakes in it end the job now
  if (config.sample) samples.emplace(*config.sample, config.data, limits);
  const std::int64_t seed = config.trainer.determinism.base_seed;
  auto data = data_provider(config.data, limits, seed);
  std::map<std::string, d9d::AutoDataProvider<d9d::TokenBatch>> evaluation_data;
  d9d::EvaluationData<Types> evaluation_sets;
  for (const auto& [name, set] : config.evaluation_data) {
    if (source) d9d::check_tokenizer(context, set, *source);
    const auto added = evaluation_data.emplace(name, data_provider(d9d::whole_set(set), limits, seed));
    evaluation_sets.emplace(name, &added.first->second);
  }
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);

  d9d::Trainer<Types> trainer(context, config.trainer,
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

// The program that pretrains a family: reads the configuration that the command line names, and trains.
template <class Parameters>
int run_pretraining(const d9d::ModelFamily<Parameters>& family, int argc, char** argv) {
  using Config = d9d::PretrainConfig<Parameters>;
  return d9d::launch<Config>(
      argc, argv,
      [&](const Config& config, d9d::DistContext& context) {
        d9d::LanguageModelTask task(context, {.tells_padding = family.has_experts});
        train(family, config, context, task, d9d::token_data_provider);
      },
      d9d::apply_0_16_aliases);
}

}  // namespace examples
