// Fine-tunes a Qwen3 to tell the topic of a fortune: each file of the Debian package `fortunes` is a topic, and its
// entries are the texts. A tenth of the texts is not trained on; the job ends with the accuracy there. Usage:
//   finetune_classification examples/finetune_classification/config.json [key.path=value ...]
#include <algorithm>
#include <iostream>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/base/ignore_index.h"
#include "d9d/base/io/input_file.h"
#include "d9d/base/rounding.h"
#include "d9d/core/launch/launch.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/families.h"
#include "d9d/models/huggingface/model_sizes.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/tokenizer/tokenizer.h"

namespace {

struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  std::filesystem::path folder = "/usr/share/games/fortunes";
  std::optional<std::filesystem::path> tokenizer = {};  // a tokenizer.json; null: tokens are bytes
  std::int64_t max_tokens = 256;                        // of a text; the rest is cut off
  d9d::ModelSizes<d9d::Qwen3DenseParameters> model = {};
  double dropout = 0.0;
  d9d::AutoDataConfig data = {};
  d9d::TrainerConfig trainer = {};
  d9d::OptimizerConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};  // for transformers; empty: nowhere
  static constexpr auto fields() {
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
        d9d::defaulted("folder", &Config::folder), d9d::defaulted("tokenizer", &Config::tokenizer),
        d9d::defaulted("max_tokens", &Config::max_tokens, d9d::at_least(1)), d9d::required("model", &Config::model),
        d9d::defaulted("dropout", &Config::dropout, d9d::between(0, 1)), d9d::required("data", &Config::data),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::defaulted("export_to", &Config::export_to));
  }
};

struct Fortune {
  at::Tensor ids;    // [n] int64
  at::Tensor topic;  // [] int64
  static constexpr auto fields() {
    return d9d::record<Fortune>(d9d::field("ids", &Fortune::ids), d9d::field("topic", &Fortune::topic));
  }
};
void make_padding(Fortune& fortune) { fortune.topic = at::scalar_tensor(d9d::kIgnoreIndex, at::kLong); }

struct Batch {                  // of B texts, padded on the right to the longest, and to what ranks can share
  at::Tensor ids, positions;    // [B, S] int64
  at::Tensor is_last;           // [B, S] bool: the last token of each text
  at::Tensor topic;             // [B] int64; kIgnoreIndex does not count
  std::int64_t num_tokens = 0;  // without padding
  static constexpr auto fields() {
    return d9d::record<Batch>(d9d::field("ids", &Batch::ids), d9d::field("positions", &Batch::positions),
                              d9d::field("is_last", &Batch::is_last), d9d::field("topic", &Batch::topic),
                              d9d::field("num_tokens", &Batch::num_tokens));
  }
};

Batch collate(std::span<const Fortune> fortunes, std::int64_t length_multiple) {
  std::vector<at::Tensor> ids, positions, topics, lasts;
  Batch batch;
  for (const Fortune& fortune : fortunes) {
    ids.push_back(fortune.ids);
    topics.push_back(fortune.topic);
    positions.push_back(at::arange(fortune.ids.size(0)));
    lasts.push_back(positions.back() == fortune.ids.size(0) - 1);
    batch.num_tokens += fortune.ids.size(0);
  }
  const auto padded = [&](const std::vector<at::Tensor>& texts) {
    const at::Tensor rows = at::pad_sequence(texts, /*batch_first=*/true);
    return at::constant_pad_nd(rows, {0, d9d::round_up(rows.size(1), length_multiple) - rows.size(1)});
  };
  batch.ids = padded(ids);
  batch.positions = padded(positions);
  batch.is_last = padded(lasts);
  batch.topic = at::stack(topics);
  return batch;
}

struct Text {
  std::string text;
  std::int64_t topic;
};
struct Texts {
  std::vector<std::string> topics = {};  // names of the files
  std::vector<Text> train = {}, validation = {};
};

// Entries end with a line that is "%". Equal texts are on the same side of the split, whatever files they are in.
Texts read_fortunes(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    const auto extension = entry.path().extension();  // .dat: an index, .u8: a link to the file
    if (entry.is_regular_file() && extension != ".dat" && extension != ".u8") files.push_back(entry.path());
  }
  D9D_CHECK(files.size() > 1, d9d::ConfigError, "[config] folder: expected two or more files of fortunes, got ",
            files.size(), " in ", folder.string(), ". Install the Debian package 'fortunes', or name another folder.");
  std::sort(files.begin(), files.end());
  Texts texts;
  for (const auto& file : files) {
    const std::string all = "\n" + d9d::text_of_file(file) + "\n%\n";
    for (std::size_t begin = 1, end = 0; (end = all.find("\n%\n", begin - 1)) != std::string::npos; begin = end + 3) {
      if (end <= begin) continue;
      const std::string text = all.substr(begin, end - begin);
      auto& side = d9d::fnv1a(text) % 10 == 0 ? texts.validation : texts.train;
      side.push_back({text, std::ssize(texts.topics)});
    }
    texts.topics.push_back(file.filename());
  }
  D9D_CHECK(!texts.train.empty() && !texts.validation.empty(), d9d::ConfigError,
            "[config] folder: expected texts to train on and texts to validate with, got ", texts.train.size(), " and ",
            texts.validation.size(), " in ", folder.string(), ". Add texts.");
  return texts;
}

struct Fortunes : d9d::Dataset<Fortune> {
  Fortunes(std::vector<Text> fortunes, const Config& config) : texts(std::move(fortunes)), max(config.max_tokens) {
    if (config.tokenizer) tokenizer = d9d::Tokenizer::from_file(*config.tokenizer);
  }
  std::int64_t highest_id() const { return tokenizer ? tokenizer->highest_id() : 255; }
  std::int64_t size() const override { return std::ssize(texts); }
  Fortune get(std::int64_t index) const override {
    const auto& [text, topic] = texts[static_cast<std::size_t>(index)];
    std::vector<std::int64_t> ids;
    if (tokenizer) {
      for (const std::uint32_t id : tokenizer->encode(text).ids) ids.push_back(id);
    } else {
      for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    }
    return {.ids = at::tensor(ids, at::kLong).slice(0, 0, max), .topic = at::scalar_tensor(topic, at::kLong)};
  }
  std::vector<Text> texts;
  std::int64_t max;
  std::optional<d9d::Tokenizer> tokenizer;  // none: bytes
};

struct State {
  at::Tensor topic, is_right, num;  // [B], [B] and a scalar: how many count
  static constexpr auto fields() {
    return d9d::record<State>(d9d::field("topic", &State::topic), d9d::field("is_right", &State::is_right),
                              d9d::field("num", &State::num));
  }
};
struct Types {
  using Batch = ::Batch;
  using Input = d9d::SequenceInput;
  using Transfer = d9d::SequenceTransfer;
  using Shared = d9d::DecoderForClassification::Shared;
  using Output = d9d::DecoderOutput<d9d::ClassificationHead>;
  using State = ::State;
};

// The accuracy of the last evaluation and the best one, which are part of checkpoints.
struct Accuracy {
  void after_evaluation(const d9d::FinishedEvaluation& evaluation) {
    last = evaluation.value("accuracy");
    best = std::max(best, last);
  }
  static constexpr auto handlers() {
    return std::tuple(d9d::on(d9d::kTrainEvaluationPost, &Accuracy::after_evaluation));
  }
  nlohmann::json state() const { return {last, best}; }
  void load_state(const nlohmann::json& state) { last = state[0], best = state[1]; }
  double last = 0, best = 0;
};

struct Task : d9d::TrainTask<Types> {
  explicit Task(const d9d::DistContext& context)
      : ranks(context.mesh(d9d::MeshDomain::kBatch).slice({"cp"})), positions(d9d::context_parallel_cut(ranks)) {}
  d9d::ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    const auto here = [&](const at::Tensor& x) { return d9d::context_parallel_shard(x, /*dim=*/1, positions); };
    return {.input = {here(batch.ids)},
            .shared = {.sequence = {.position_ids = here(batch.positions), .hidden_states_agg_mask = {}},
                       .head = {.pooling_mask = batch.is_last, .num_positions = batch.ids.size(0)}},
            .state = {batch.topic, {}, batch.topic.ne(d9d::kIgnoreIndex).sum()},
            .num_tokens = ranks.index() == 0 ? batch.num_tokens : 0};  // once for all that share the texts
  }
  d9d::LossResult compute_loss(const Output& output, State& state, const d9d::JobSchedule&) override {
    state.is_right = output.head.scores.argmax(-1) == state.topic;
    const at::Tensor losses = at::cross_entropy_loss(output.head.scores, state.topic, {}, at::Reduction::Sum);
    return {.loss = losses / state.num.clamp_min(1), .loss_weight = state.num};  // ignores kIgnoreIndex
  }
  d9d::MetricMap create_metrics() override { return {{"accuracy", std::make_shared<d9d::MeanMetric>()}}; }
  void update_metrics(const State& state, const d9d::MetricMap& metrics) override {
    const at::Tensor share = state.is_right.sum() / state.num.clamp_min(1);
    d9d::metric_at<d9d::MeanMetric>(metrics, "accuracy").update(share, state.num);
  }
  void register_events(const d9d::DistContext&, d9d::EventBus& events) override { events.attach("accuracy", accuracy); }
  const d9d::DeviceMesh ranks;  // that share a text
  const d9d::PositionCut positions;
  Accuracy accuracy;
};

// A Qwen3 with a head of classes. Checkpoints of a language model have no such head: source_may_lack names it.
struct Provider : d9d::ModelProvider<Types> {
  Provider(const Config& configuration, std::int64_t num_topics)
      : sizes(d9d::resolve_model_sizes(configuration.model, configuration.trainer.model_stage_factory.source_checkpoint,
                                       d9d::kQwen3Dense.parameters_from_huggingface, {.keys = "model"})),
        head{.num_labels = num_topics, .dropout = configuration.dropout} {}
  d9d::ModelStage<Types> initialize_model_stage(const d9d::DistContext&, const d9d::PipelineStageInfo& stage) override {
    backbone = d9d::kQwen3Dense.build(sizes, {.stage = stage});
    model = d9d::make_decoder_for_classification(backbone, head);
    return d9d::as_model_stage<Types>(model);
  }
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::parallelize_decoder(context, *backbone, {model->head.shared()});
  }
  d9d::StateMapper map_source_checkpoint(const d9d::HuggingFaceDirectory& source, const d9d::Module&) override {
    return d9d::kQwen3Dense.from_huggingface(sizes, head, source.names());
  }
  d9d::ModelExport prepare_export(const d9d::Module&) override {
    return {.mapper = d9d::kQwen3Dense.to_huggingface(sizes, head, d9d::ExpertsFormat::kModuleList),
            .files = {{"config.json", d9d::kQwen3Dense.huggingface_config(sizes, head, d9d::Dtype::kFloat32).dump(2)}}};
  }
  // Throws ConfigError unless ids and positions are ids and positions of the model.
  void check(std::int64_t highest_id, std::int64_t max_tokens) const {
    std::int64_t vocabulary = 0;
    for (const auto& split : sizes.split_vocab_size) vocabulary += split.second;
    D9D_CHECK(highest_id < vocabulary, d9d::ConfigError, "[config] tokenizer: expected ids < ", vocabulary,
              ", the vocabulary of the model, got ", highest_id, ". Take the tokenizer of the model.");
    D9D_CHECK(max_tokens <= sizes.max_position_ids, d9d::ConfigError, "[config] max_tokens: expected at most ",
              sizes.max_position_ids, ", max_position_ids of the model, got ", max_tokens, ". Shorten the texts.");
  }
  const d9d::Qwen3DenseParameters sizes;
  const d9d::ClassificationHeadConfig head;
  d9d::ModulePtr<d9d::PreNormDecoder> backbone;
  d9d::ModulePtr<d9d::DecoderForClassification> model;
};

void train(const Config& config, d9d::DistContext& context) {
  const Texts texts = read_fortunes(config.folder);
  Task task(context);
  const auto collate_for_ranks = [multiple = context.mesh_parameters().position_divisor()](
                                     std::span<const Fortune> fortunes) { return collate(fortunes, multiple); };
  Provider model(config, std::ssize(texts.topics));
  const auto provider_of = [&](const std::vector<Text>& side, bool drops_last) {
    const auto fortunes = std::make_shared<const Fortunes>(side, config);
    model.check(fortunes->highest_id(), config.max_tokens);
    d9d::AutoDataConfig loader = config.data;
    loader.drop_last = loader.drop_last.value_or(drops_last);
    return d9d::AutoDataProvider<Batch>([=](const auto&) { return fortunes; }, collate_for_ranks, loader,
                                        config.trainer.determinism.base_seed);
  };
  auto data = provider_of(texts.train, true), validation = provider_of(texts.validation, false);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<Types> trainer(context, config.trainer,
                              {.task = task,
                               .model = model,
                               .data = data,
                               .optimizer = optimizer,
                               .lr_scheduler = lr_scheduler,
                               .evaluation = {{"validation", &validation}}});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  if (!config.export_to.empty()) trainer.export_to(config.export_to);
  if (context.is_main_process()) {
    std::cout << "accuracy on " << texts.validation.size() << " unseen fortunes of " << texts.topics.size()
              << " topics: " << task.accuracy.last << ", best " << task.accuracy.best << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }
