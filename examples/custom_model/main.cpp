// Learns to recognise the programming language of a piece of text. Data, model and task are defined here; batches, the
// loop, sharding over ranks, the optimiser, logging, checkpoints and configuration are the library's. Usage:
//   custom_model examples/custom_model/config.json [key.path=value ...]
#include <iostream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/conv.h>

#include "d9d/base/io/input_file.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/launch/launch.h"
#include "d9d/data/sequences/stack_samples.h"
#include "d9d/data/source/match_files.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/shard_over_data.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/modules/adopt.h"

#include "csv_tracker.h"

namespace {

// A plain struct that lists its fields. Unknown and missing keys and wrong values are refused.
struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  std::map<std::string, std::vector<std::string>> languages = {};  // name -> shell patterns of files
  std::int64_t num_channels = 1;
  d9d::AutoDataConfig data = {};
  d9d::TrainerConfig trainer = {};
  d9d::OptimizerConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};  // a folder for the trained weights; empty: none
  static constexpr auto fields() {
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
        d9d::required("languages", &Config::languages),
        d9d::required("num_channels", &Config::num_channels, d9d::at_least(1)), d9d::required("data", &Config::data),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::defaulted("export_to", &Config::export_to));
  }
};

// A sample, and a batch of B samples: stack_samples() stacks them, the library finds the tensors through fields().
struct Snippet {
  at::Tensor bytes;     // [S] int64; of a batch [B, S]
  at::Tensor language;  // [] int64; of a batch [B]
  static constexpr auto fields() {
    return d9d::record<Snippet>(d9d::field("bytes", &Snippet::bytes), d9d::field("language", &Snippet::language));
  }
};

// Samples by their number. In which order they are read, and on which rank, is the library's matter.
struct Snippets : d9d::Dataset<Snippet> {
  Snippets(const Config& config, std::int64_t from_percent, std::int64_t to_percent) {
    for (const auto& [language, patterns] : config.languages) {
      std::string text;
      for (const auto& path : d9d::match_files(patterns)) text += d9d::text_of_file(path);
      const at::Tensor bytes = at::from_blob(text.data(), {std::ssize(text)}, at::kByte).to(at::kLong);
      const at::Tensor part = bytes.slice(0, bytes.size(0) * from_percent / 100, bytes.size(0) * to_percent / 100);
      windows.push_back(part.unfold(0, /*size=*/96, /*step=*/1));
    }
  }
  std::int64_t size() const override { return 100'000; }  // of an epoch
  Snippet get(std::int64_t index) const override {        // of each language in turn, at places far apart
    const std::int64_t language = index % std::ssize(windows);
    const at::Tensor& snippets = windows[language];
    return {.bytes = snippets[index * 7919 % snippets.size(0)], .language = at::scalar_tensor(language, at::kLong)};
  }
  std::vector<at::Tensor> windows;  // of each language all snippets: [number, 96] int64
};

// Of B snippets of S bytes the logits of L languages.
struct SnippetClassifier : d9d::Module {
  SnippetClassifier(std::int64_t width, std::int64_t languages)
      : embedding(register_parameter("embedding", {.shape = {256, width}, .init = d9d::init::normal(1.0)})),
        convolution(register_module("convolution", d9d::adopt([=] { return torch::nn::Conv1d(width, width, 5); }))),
        classifier(register_module<d9d::Linear>("classifier", d9d::LinearConfig{width, languages})) {}
  at::Tensor forward(const at::Tensor& bytes, const std::monostate&) const {
    const at::Tensor embedded = at::embedding(embedding->local(), bytes);         // [B, S, width]
    const at::Tensor features = at::gelu(convolution(embedded.transpose(1, 2)));  // [B, width, S - 4]
    return classifier(features.logsumexp(-1));  // of a smooth maximum over positions; [B, L]
  }
  const d9d::ParameterPtr embedding;
  const d9d::ModulePtr<d9d::Adopted<torch::nn::Conv1dImpl>> convolution;  // a layer of torch::nn
  const d9d::ModulePtr<d9d::Linear> classifier;                           // a layer of the library
};

// Ends the job when three evaluations in a row are no better than the best before them, also over several starts.
struct EarlyStop {
  void after_evaluation(const d9d::FinishedEvaluation& evaluation) {
    accuracy = evaluation.value("accuracy");
    num_worse = accuracy > best ? 0 : num_worse + 1;
    best = std::max(best, accuracy);
    if (num_worse >= 3) evaluation.stop.request("three evaluations were no better");
  }
  static constexpr auto handlers() {
    return std::tuple(d9d::on(d9d::kTrainEvaluationPost, &EarlyStop::after_evaluation));
  }
  nlohmann::json state() const { return {accuracy, best, num_worse}; }  // part of checkpoints
  void load_state(const nlohmann::json& state) { accuracy = state[0], best = state[1], num_worse = state[2]; }
  double accuracy = 0, best = 0;
  int num_worse = 0;
};

struct Types {
  using Batch = Snippet;
  using Input = at::Tensor;                         // bytes
  using Shared = std::monostate;                    // no further inputs
  using Output = at::Tensor;                        // logits
  using State = std::pair<at::Tensor, at::Tensor>;  // of a microbatch, until its metrics: language, is_correct
};

// How a batch becomes inputs of the model, and its outputs a loss and a metric.
struct Task : d9d::TrainTask<Types> {
  d9d::ForwardInputs<Types> build_forward_inputs(const Snippet& batch) override {
    return {.input = batch.bytes, .state = {batch.language, {}}, .num_tokens = batch.bytes.numel()};
  }
  d9d::LossResult compute_loss(const at::Tensor& logits, State& state, const d9d::JobSchedule&) override {
    auto& [language, is_correct] = state;
    is_correct = logits.argmax(-1) == language;
    return {.loss = at::cross_entropy_loss(logits, language)};
  }
  d9d::MetricMap create_metrics() override { return {{"accuracy", std::make_shared<d9d::MeanMetric>()}}; }
  void update_metrics(const State& state, const d9d::MetricMap& metrics) override {
    const at::Tensor& is_correct = state.second;
    const at::Tensor num_snippets = at::scalar_tensor(is_correct.numel());
    d9d::metric_at<d9d::MeanMetric>(metrics, "accuracy").update(is_correct.to(at::kFloat).mean(), num_snippets);
  }
  void register_events(const d9d::DistContext&, d9d::EventBus& events) override {
    events.attach("early_stop", early_stop);
  }
  EarlyStop early_stop;
};

// Builds the model on each rank.
struct Provider : d9d::ModelProvider<Types> {
  explicit Provider(const Config& configuration) : config(configuration) {}
  d9d::ModelStage<Types> initialize_model_stage(const d9d::DistContext&, const d9d::PipelineStageInfo&) override {
    model = d9d::make_module<SnippetClassifier>(config.num_channels, std::ssize(config.languages));
    return d9d::as_model_stage<Types>(model);
  }
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::shard_over_data(context, model.shared(), {model->convolution.shared(), model->classifier.shared()});
  }
  const Config& config;
  d9d::ModulePtr<SnippetClassifier> model;
};

void train(const Config& config, d9d::DistContext& context) {
  Task task;
  Provider provider(config);
  d9d::AutoDataProvider<Snippet> data([&](const auto&) { return std::make_shared<Snippets>(config, 0, 90); },
                                      d9d::stack_samples<Snippet>, config.data, config.trainer.determinism.base_seed);
  d9d::AutoDataProvider<Snippet> unseen([&](const auto&) { return std::make_shared<Snippets>(config, 90, 100); },
                                        d9d::stack_samples<Snippet>, config.data, config.trainer.determinism.base_seed);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<Types> trainer(context, config.trainer,
                              {.task = task,
                               .model = provider,
                               .data = data,
                               .optimizer = optimizer,
                               .lr_scheduler = lr_scheduler,
                               .evaluation = {{"unseen", &unseen}},
                               .trackers = {{"csv", make_csv_tracker}}});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  if (!config.export_to.empty()) trainer.export_to(config.export_to);
  if (context.is_main_process() && task.early_stop.best > 0)
    std::cout << "accuracy on unseen text " << task.early_stop.accuracy << '\n';
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }
