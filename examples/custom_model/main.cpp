// Learns to recognise the programming language of a piece of text. Model, task, data, metric and optimiser are defined
// here; the loop, sharding over ranks, the schedule, logging and configuration are the library's.
//
//   custom_model examples/custom_model/config.json [key.path=value ...]
#include <fstream>
#include <iostream>

#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>

#include "d9d/base/philox.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/launch/launch.h"
#include "d9d/data/order/num_microbatches.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/data/source/match_files.h"
#include "d9d/loop/auto/auto_providers.h"
#include "d9d/loop/control/shard_over_data.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/modules/adopt.h"

namespace {

// ---- Configuration: a plain struct that lists its fields. Unknown and missing keys and wrong values are refused. ----

struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  std::map<std::string, std::vector<std::string>> languages = {};  // name -> shell patterns of files
  std::int64_t num_channels = 1;
  d9d::TrainerConfig trainer = {};
  double learning_rate = 0.0;
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};  // a folder for the trained weights; empty: none
  static constexpr auto fields() {
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
                               d9d::required("languages", &Config::languages),
                               d9d::required("num_channels", &Config::num_channels, d9d::at_least(1)),
                               d9d::required("trainer", &Config::trainer),
                               d9d::required("learning_rate", &Config::learning_rate, d9d::greater_than(0)),
                               d9d::required("lr_scheduler", &Config::lr_scheduler),
                               d9d::defaulted("export_to", &Config::export_to));
  }
};

// ---- Model: an ordinary class. B snippets, S bytes, C channels, L languages. ----

struct SnippetClassifier : d9d::Module {
  SnippetClassifier(std::int64_t num_channels, std::int64_t num_languages)
      : embedding(register_parameter("embedding", {.shape = {256, num_channels}, .init = d9d::init::normal(1.0)})),
        convolution(register_module("convolution", d9d::adopt([num_channels] {
                                      return torch::nn::Conv1d(num_channels, num_channels, /*kernel_size=*/5);
                                    }))),
        classifier(register_module<d9d::Linear>("classifier", d9d::LinearConfig{num_channels, num_languages})) {}

  // bytes [B, S] int64 -> logits [B, L].
  at::Tensor forward(const at::Tensor& bytes, const std::monostate&) const {
    const at::Tensor embedded = at::embedding(embedding->local(), bytes);         // [B, S, C]
    const at::Tensor features = at::relu(convolution(embedded.transpose(1, 2)));  // [B, C, S - 4]
    return classifier(features.amax(-1));
  }

  const d9d::ParameterPtr embedding;
  const d9d::ModulePtr<d9d::Adopted<torch::nn::Conv1dImpl>> convolution;  // a layer of torch::nn
  const d9d::ModulePtr<d9d::Linear> classifier;                           // a layer of the library
};

// ---- Data: the texts, snippets of them, and a stream that returns the microbatches of one step at a time. ----

struct SnippetBatch {
  at::Tensor bytes;     // [B, S] int64
  at::Tensor language;  // [B] int64
  static constexpr auto fields() {
    return d9d::record<SnippetBatch>(d9d::field("bytes", &SnippetBatch::bytes),
                                     d9d::field("language", &SnippetBatch::language));
  }
};

constexpr std::int64_t kLength = 96;     // of a snippet, in bytes
constexpr std::int64_t kBatchSize = 64;  // of one step, over all ranks
constexpr std::int64_t kMicrobatchSize = 32;
constexpr double kTrainingPart = 0.9;  // the remaining end of each text is kept for the test

struct Corpus {
  explicit Corpus(const Config& config) {
    for (const auto& [language, patterns] : config.languages) {
      std::string text;
      for (const auto& path : d9d::match_files(patterns)) {
        std::ifstream file(path);
        text.append(std::istreambuf_iterator<char>(file), {});
      }
      texts.push_back(at::from_blob(text.data(), {std::ssize(text)}, at::kByte).to(at::kLong));
    }
  }

  // Snippets number first, first + 1, ... of an endless sequence. They start in the part [from, to) of their text.
  SnippetBatch draw(std::int64_t first, std::int64_t count, double from, double to) const {
    std::vector<at::Tensor> snippets, languages;
    for (std::int64_t i = first; i < first + count; ++i) {
      const d9d::PhiloxWords words = d9d::philox4x32({.low = static_cast<std::uint64_t>(i)}, /*key=*/1);
      const std::size_t language = words[0] % texts.size();
      const double place = from + (to - from) * d9d::uniform_double(words[1], words[2]);
      const auto start = static_cast<std::int64_t>(place * static_cast<double>(texts[language].size(0) - kLength));
      snippets.push_back(texts[language].narrow(0, start, kLength));
      languages.push_back(at::scalar_tensor(static_cast<double>(language), at::kLong));
    }
    return {.bytes = at::stack(snippets), .language = at::stack(languages)};
  }

  std::vector<at::Tensor> texts;  // [number of bytes] int64 each
};

// Any class with these four functions is a pack stream: each pack holds the microbatches of one step that this rank
// computes. Data-parallel ranks divide the step's snippets among themselves, so that the job learns the same on any
// number of them.
struct SnippetStream {
  std::optional<std::vector<SnippetBatch>> next() {
    std::vector<SnippetBatch> pack(static_cast<std::size_t>(num_microbatches));
    std::int64_t first = num_drawn + rank * num_microbatches * kMicrobatchSize;
    for (SnippetBatch& batch : pack) {
      batch = corpus.draw(first, kMicrobatchSize, 0, kTrainingPart);
      first += kMicrobatchSize;
    }
    num_drawn += kBatchSize;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }  // endless
  nlohmann::json state() const { return {{"num_drawn", num_drawn}}; }
  void load_state(const nlohmann::json& state) { num_drawn = state.at("num_drawn"); }

  const Corpus& corpus;
  std::int64_t rank = 0;  // among the ranks with different data
  std::int64_t num_microbatches = 1;
  std::int64_t num_drawn = 0;  // over all ranks
};

// ---- Task: how a batch becomes inputs, and outputs become a loss and a metric. ----

struct SnippetState {               // of one microbatch, from its inputs to its metrics
  at::Tensor language, is_correct;  // [B] int64, [B] bool
  static constexpr auto fields() {
    return d9d::record<SnippetState>(d9d::field("language", &SnippetState::language),
                                     d9d::field("is_correct", &SnippetState::is_correct));
  }
};

struct SnippetTypes {
  using Batch = SnippetBatch;
  using Input = at::Tensor;       // bytes
  using Shared = std::monostate;  // no further inputs
  using Output = at::Tensor;      // logits
  using State = SnippetState;
};

struct Accuracy : d9d::Metric {
  void update(const at::Tensor& is_right) {
    const at::Tensor right = is_right.to(at::kDouble);
    share.update(right.mean(), right.new_full({}, right.numel()));
  }
  at::Tensor compute() const override { return share.compute(); }
  void reset() override { share.reset(); }
  void sync(const d9d::DeviceMesh& ranks) override { share.sync(ranks); }
  at::Tensor state() const override { return share.state(); }  // of a checkpoint; sums over ranks
  void load_state(const at::Tensor& state) override { share.load_state(state); }
  d9d::MeanMetric share;
};

struct SnippetTask : d9d::TrainTask<SnippetTypes> {
  d9d::ForwardInputs<SnippetTypes> build_forward_inputs(const SnippetBatch& batch) override {
    return {.input = batch.bytes, .state = {.language = batch.language}, .num_tokens = batch.bytes.numel()};
  }
  d9d::LossResult compute_loss(const at::Tensor& logits, SnippetState& state, const d9d::JobSchedule&) override {
    state.is_correct = logits.argmax(-1) == state.language;
    return {.loss = at::cross_entropy_loss(logits, state.language)};
  }
  d9d::MetricMap create_metrics() override { return {{"accuracy", accuracy}}; }
  void update_metrics(const SnippetState& state, const d9d::MetricMap&) override { accuracy->update(state.is_correct); }

  const std::shared_ptr<Accuracy> accuracy = std::make_shared<Accuracy>();
};

// ---- Optimiser: gradient descent with momentum. Any class with these three functions is an optimiser. ----

class Momentum {
 public:
  // Each tensor is what this rank keeps of a parameter: a part of it where the mesh shards parameters.
  Momentum(const std::vector<d9d::NamedParameter>& parameters, double learning_rate)
      : learning_rate_(learning_rate), parameters_(parameters) {
    for (const auto& parameter : parameters_) velocities_[parameter.name] = at::zeros_like(parameter.tensor.detach());
  }
  double learning_rate() const { return learning_rate_; }
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      if (!parameter.tensor.grad().defined()) continue;
      at::Tensor& velocity = velocities_.at(parameter.name).mul_(0.9).add_(parameter.tensor.grad());
      parameter.tensor.sub_(velocity, learning_rate);
    }
  }
  // Saved and filled again in place; on another mesh each rank gets the part that it keeps there.
  std::map<std::string, d9d::DTensor> state_dict() const {
    std::map<std::string, d9d::DTensor> state;
    for (const auto& parameter : parameters_) {
      state.emplace(parameter.name + ".velocity", parameter.laid_out(velocities_.at(parameter.name)));
    }
    return state;
  }

 private:
  double learning_rate_;
  std::vector<d9d::NamedParameter> parameters_;
  std::map<std::string, at::Tensor> velocities_;
};
static_assert(d9d::OptimizerProtocol<Momentum>);

// ---- Providers: the trainer calls them when it builds the job. ----

struct SnippetProvider : d9d::ModelProvider<SnippetTypes>, d9d::DataProvider<SnippetBatch>, d9d::OptimizerProvider {
  explicit SnippetProvider(const Config& configuration) : config(configuration), corpus(configuration) {}

  d9d::ModelStage<SnippetTypes> initialize_model_stage(const d9d::DistContext&,
                                                       const d9d::PipelineStageInfo&) override {
    model = d9d::make_module<SnippetClassifier>(config.num_channels, std::ssize(config.languages));
    return d9d::as_model_stage<SnippetTypes>(model);
  }
  // With mesh.data_parallel_shard=2 each of two ranks keeps half of every parameter and of the optimiser's state. The
  // units are gathered while they run; the embedding, which belongs to none, for the whole microbatch.
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::shard_over_data(context, model.shared(), {model->convolution.shared(), model->classifier.shared()});
  }
  d9d::Optimizer build_optimizer(const d9d::DistContext&, const d9d::TrainableParameters& trainable) override {
    return d9d::Optimizer(Momentum(trainable.parameters, config.learning_rate));
  }
  std::unique_ptr<d9d::PackStream<SnippetBatch>> build_pack_stream(const d9d::DistContext& context,
                                                                   std::optional<std::int64_t>) override {
    return d9d::as_pack_stream<SnippetBatch>(
        SnippetStream{.corpus = corpus,
                      .rank = context.data_parallel_rank(),
                      .num_microbatches =  // throws if the number of ranks does not divide the batch
                      d9d::num_microbatches_for_global_batch({.data_parallel_size = context.data_parallel_size(),
                                                              .global_batch_size = kBatchSize,
                                                              .microbatch_size = kMicrobatchSize})});
  }

  const Config config;
  const Corpus corpus;
  d9d::ModulePtr<SnippetClassifier> model;
};

void train(const Config& config, d9d::DistContext& context) {
  SnippetTask task;
  SnippetProvider provider(config);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<SnippetTypes> trainer(
      context, config.trainer,
      {.task = task, .model = provider, .data = provider, .optimizer = provider, .lr_scheduler = lr_scheduler});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  if (!config.export_to.empty()) trainer.export_to(config.export_to);

  const at::NoGradGuard no_grad;
  const SnippetBatch unseen = provider.corpus.draw(/*first=*/0, /*count=*/500, kTrainingPart, 1);
  const at::Tensor logits = provider.model(unseen.bytes.to(context.device()), std::monostate());  // all ranks: sharded
  if (!context.is_main_process()) return;
  const at::Tensor guess = logits.argmax(-1).cpu();
  std::cout << "accuracy on unseen text " << (guess == unseen.language).to(at::kDouble).mean().item<double>() << '\n';
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }
