// The perplexity of a language model on text, whatever the family of the model: exp of the mean cross-entropy of all
// tokens that are predicted. Any mesh gives the same number, and a job that was killed continues.
#pragma once

#include <cmath>
#include <iostream>
#include <memory>
#include <vector>

#include "d9d/core/launch/launch.h"
#include "d9d/data/build/config.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/language_model/model_tokenizer.h"
#include "d9d/loop/run/inference.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/reduce_metrics.h"
#include "d9d/models/model_family.h"

namespace examples {

template <class Parameters>
struct PerplexityConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  d9d::DataConfig data = {};  // the text whose perplexity is computed
  d9d::CausalLMProviderConfig<Parameters> model_provider = {};
  d9d::InferenceConfig inference = {};

  static constexpr auto fields() {
    using Config = PerplexityConfig;
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
                               d9d::required("data", &Config::data),
                               d9d::required("model_provider", &Config::model_provider),
                               d9d::required("inference", &Config::inference));
  }
};

// Sums the cross-entropy of this rank's tokens.
class Perplexity : public d9d::InferenceTask<d9d::LanguageModelTypes> {
 public:
  explicit Perplexity(const d9d::DistContext& context) : context_(context), inputs_(context) {}

  d9d::ForwardInputs<d9d::LanguageModelTypes> build_forward_inputs(const Batch& batch) override {
    return inputs_.build_forward_inputs(batch);
  }
  void process_outputs(const Output& output, const State& state) override {
    cross_entropy_.update(output.head.cross_entropy);
    num_predicted_.update(state.num_predicted);
  }
  // The sums so far; a job that continues may have another number of ranks, and one of them takes all.
  nlohmann::json state() const override {
    return {cross_entropy_.compute().item<double>(), num_predicted_.compute().item<double>()};
  }
  void load_state(const std::vector<nlohmann::json>& of_ranks) override {
    if (!context_.is_main_process()) return;
    for (const nlohmann::json& sums : of_ranks) {
      cross_entropy_.update(at::scalar_tensor(sums[0].get<double>(), on_device()));
      num_predicted_.update(at::scalar_tensor(sums[1].get<double>(), on_device()));
    }
  }
  void finalize() override {
    d9d::reduce_metrics({&cross_entropy_, &num_predicted_}, d9d::metric_ranks(context_));
    const double mean = cross_entropy_.compute().item<double>() / num_predicted_.compute().item<double>();
    if (context_.is_main_process()) {
      std::cout << "perplexity " << std::exp(mean) << " (cross-entropy " << mean << " of "
                << num_predicted_.compute().item<double>() << " tokens)\n";
    }
  }

 private:
  [[nodiscard]] at::TensorOptions on_device() const { return at::TensorOptions(context_.device()).dtype(at::kDouble); }

  const d9d::DistContext& context_;
  d9d::LanguageModelTask inputs_;
  d9d::SumMetric cross_entropy_, num_predicted_;
};

template <class Parameters>
void print_perplexity(const d9d::ModelFamily<Parameters>& family, const PerplexityConfig<Parameters>& config,
                      d9d::DistContext& context) {
  const auto& source = config.inference.model_stage_factory.source_checkpoint;
  const auto sizes = d9d::causal_lm_sizes(family, config.model_provider, source);
  if (source) d9d::check_tokenizer(context, config.data, *source);
  d9d::CausalLMProvider model(family, config.model_provider, sizes);
  const d9d::VocabularySplits vocabulary{.sizes = sizes.split_vocab_size, .order = sizes.split_vocab_order};
  auto data = d9d::token_data_provider(d9d::whole_set(config.data),
                                       {.vocabulary_size = vocabulary.total(), .max_positions = sizes.max_position_ids},
                                       config.inference.determinism.base_seed);
  Perplexity task(context);
  d9d::Inference<d9d::LanguageModelTypes> inference(context, config.inference,
                                                    {.task = task, .model = model, .data = data});
  inference.infer();
}

// The program of a family: reads the configuration that the command line names, and prints the perplexity.
template <class Parameters>
int run_perplexity(const d9d::ModelFamily<Parameters>& family, int argc, char** argv) {
  using Config = PerplexityConfig<Parameters>;
  return d9d::launch<Config>(
      argc, argv, [&](const Config& config, d9d::DistContext& context) { print_perplexity(family, config, context); },
      d9d::apply_0_16_aliases);
}

}  // namespace examples
