// Reinforcement learning in which training and generation share the devices: the trainer sleeps while a rollout engine
// generates, and the engine is gone while the trainer trains. Usage:
//   colocated_rl examples/colocated_rl/config.json [key.path=value ...]
//
// Each round: the policy is exported; the trainer sleeps; the engine loads the policy, completes the prompt many times
// and is destroyed; the trainer wakes and takes several steps on these completions, with the loss of GRPO. The engine
// is a stand-in for one such as vLLM or SGLang: it allocates as much memory as a KV cache takes (rollouts.cache_gib).
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/launch/launch.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/loop/language_model/decoder_inputs.h"
#include "d9d/loop/language_model/sequence_log_probs.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/families.h"
#include "d9d/models/load_decoder.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace {

struct RolloutConfig {
  std::string prompt = {};
  std::int64_t num_rollouts = 1;  // completions of each data-parallel rank in a round
  std::int64_t num_tokens = 1;    // bytes of a completion
  std::int64_t num_steps = 1;     // of training between two rounds, all on the same completions
  double clip = 0.2;              // a step gains nothing where the ratio of probabilities is farther than this from 1
  double cache_gib = 0;           // memory of the engine besides its weights
  std::filesystem::path weights;  // the folder in which the engine gets the policy
  static constexpr auto fields() {
    using Config = RolloutConfig;
    return d9d::record<Config>(d9d::required("prompt", &Config::prompt),
                               d9d::required("num_rollouts", &Config::num_rollouts, d9d::at_least(1)),
                               d9d::required("num_tokens", &Config::num_tokens, d9d::at_least(1)),
                               d9d::required("num_steps", &Config::num_steps, d9d::at_least(1)),
                               d9d::defaulted("clip", &Config::clip, d9d::greater_than(0)),
                               d9d::defaulted("cache_gib", &Config::cache_gib, d9d::at_least(0)),
                               d9d::required("weights", &Config::weights));
  }
};

struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  RolloutConfig rollouts = {};
  d9d::CausalLMProviderConfig<d9d::Qwen3DenseParameters> model_provider = {};
  d9d::TrainerConfig trainer = {};
  d9d::OptimizerConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  static constexpr auto fields() {
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
        d9d::required("rollouts", &Config::rollouts), d9d::required("model_provider", &Config::model_provider),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler));
  }
};

using Tokens = std::vector<std::int64_t>;  // bytes, of which the model's vocabulary consists

// Throws ConfigError for values that are wrong together.
void check(const Config& config, const d9d::Qwen3DenseParameters& sizes) {
  const RolloutConfig& rollouts = config.rollouts;
  const std::int64_t num_positions = std::ssize(rollouts.prompt) + rollouts.num_tokens;
  D9D_CHECK(!rollouts.prompt.empty(), d9d::ConfigError,
            "[config] rollouts.prompt: expected text, got none. Give at least one byte.");
  D9D_CHECK(num_positions <= sizes.max_position_ids, d9d::ConfigError,
            "[config] rollouts.num_tokens: expected a prompt and a completion of at most ", sizes.max_position_ids,
            " bytes, max_position_ids of the model, got ", num_positions, ". Lower it.");
  D9D_CHECK(config.trainer.data_prefetch.prefetch_factor == 0, d9d::ConfigError,
            "[config] trainer.data_prefetch.prefetch_factor: expected 0, got ",
            config.trainer.data_prefetch.prefetch_factor,
            ": packs that are read ahead have completions of an earlier policy. Set it to 0.");
}

// The share of lower-case letters.
double reward_of(const Tokens& completion) {
  const auto num_letters = std::ranges::count_if(completion, [](auto token) { return token >= 'a' && token <= 'z'; });
  return static_cast<double>(num_letters) / static_cast<double>(completion.size());
}

// A completion, with the log-probability that the policy gave each of its bytes when it drew them.
struct Rollout {
  Tokens completion;
  std::vector<double> log_probs;
  double advantage = 0;  // the reward's distance from the round's mean, in standard deviations
};
void to_json(nlohmann::json& json, const Rollout& rollout) {
  json = {rollout.completion, rollout.log_probs, rollout.advantage};
}
void from_json(const nlohmann::json& json, Rollout& rollout) {
  rollout = {json.at(0).get<Tokens>(), json.at(1).get<std::vector<double>>(), json.at(2).get<double>()};
}

// The stand-in for a rollout engine: a model of its own in the memory that the trainer has given back.
class Engine {
 public:
  Engine(const Config& config, c10::Device device)
      : model_(d9d::load_decoder(config.rollouts.weights, d9d::to_scalar_type(config.model_provider.dtype), device)),
        cache_(at::empty({static_cast<std::int64_t>(config.rollouts.cache_gib * (1 << 30))},
                         at::device(device).dtype(at::kByte))) {}

  // first: the number of the first completion, which decides what is drawn.
  [[nodiscard]] std::vector<Rollout> complete(const RolloutConfig& config, std::int64_t first) const {
    const std::vector<Tokens> prompts(static_cast<std::size_t>(config.num_rollouts),
                                      Tokens(config.prompt.begin(), config.prompt.end()));
    std::vector<Rollout> rollouts;
    for (auto& generated : d9d::generate_batch(
             model_, prompts, {.num_tokens = config.num_tokens, .temperature = 1.0, .first_sequence = first})) {
      rollouts.push_back({.completion = std::move(generated.ids), .log_probs = std::move(generated.log_probs)});
    }
    return rollouts;
  }

 private:
  const d9d::ModulePtr<d9d::DecoderForCausalLM> model_;
  const at::Tensor cache_;
};

// B completions behind their prompt, S positions.
struct RolloutBatch {
  d9d::TokenBatch tokens;
  at::Tensor log_probs;   // [B, S]: when each label was drawn; 0 where there is no label
  at::Tensor advantages;  // [B]
  static constexpr auto fields() {
    return d9d::record<RolloutBatch>(d9d::field("tokens", &RolloutBatch::tokens),
                                     d9d::field("log_probs", &RolloutBatch::log_probs),
                                     d9d::field("advantages", &RolloutBatch::advantages));
  }
};

struct RolloutState {
  at::Tensor log_probs, advantages;
  at::Tensor has_label, num_labels;  // [B, S], scalar
  at::Tensor ratios;                 // [B, S]: probability now, divided by that when it was drawn
  static constexpr auto fields() {
    using State = RolloutState;
    return d9d::record<State>(d9d::field("log_probs", &State::log_probs), d9d::field("advantages", &State::advantages),
                              d9d::field("has_label", &State::has_label), d9d::field("num_labels", &State::num_labels),
                              d9d::field("ratios", &State::ratios));
  }
};

struct GrpoTypes {
  using Batch = RolloutBatch;
  using Input = d9d::SequenceInput;
  using Transfer = d9d::SequenceTransfer;
  using Shared = d9d::DecoderForCausalLM::Shared;
  using Output = d9d::DecoderOutput<d9d::LanguageModellingHead>;
  using State = RolloutState;
};

// Group relative policy optimization (Shao et al., arXiv:2402.03300) without a penalty: the mean over all tokens of
// -min(ratio * advantage, clip(ratio) * advantage). The group is all completions of a round, which have one prompt.
class GrpoTask : public d9d::TrainTask<GrpoTypes> {
 public:
  GrpoTask(const d9d::DistContext& context, double clip)
      : positions_(d9d::context_parallel_cut(context.mesh(d9d::MeshDomain::kBatch).slice({"cp"}))), clip_(clip) {}

  d9d::ForwardInputs<GrpoTypes> build_forward_inputs(const RolloutBatch& batch) override {
    const d9d::DecoderInputs inputs = d9d::decoder_inputs(batch.tokens, positions_, {.tells_padding = false});
    const at::Tensor has_label = inputs.shared.head.labels.ne(d9d::kIgnoreIndex);
    return {.input = inputs.input,
            .shared = inputs.shared,
            .state = {.log_probs = d9d::context_parallel_shard(batch.log_probs, /*dim=*/1, positions_),
                      .advantages = batch.advantages.unsqueeze(1),
                      .has_label = has_label,
                      .num_labels = has_label.sum()},
            .num_tokens = inputs.num_tokens};
  }
  d9d::LossResult compute_loss(const Output& output, RolloutState& state, const d9d::JobSchedule&) override {
    state.ratios = (d9d::token_log_probs(output.head.cross_entropy) - state.log_probs).exp();
    const at::Tensor gains =
        at::minimum(state.ratios * state.advantages, state.ratios.clamp(1 - clip_, 1 + clip_) * state.advantages);
    const at::Tensor sum = (gains * state.has_label).sum();  // 0 of a rank whose positions are all of the prompt
    return {.loss = -sum / state.num_labels.clamp_min(1), .loss_weight = state.num_labels};
  }
  d9d::MetricMap create_metrics() override { return {{"ratio", std::make_shared<d9d::MeanMetric>()}}; }
  void update_metrics(const RolloutState& state, const d9d::MetricMap& metrics) override {
    d9d::metric_at<d9d::MeanMetric>(metrics, "ratio").update(state.ratios, state.has_label);
  }

 private:
  d9d::PositionCut positions_;  // of the ranks that share a sequence
  double clip_;
};

// The completions that the job trains on until the next round. In every step a rank has its share as one microbatch.
struct Rollouts : d9d::DataProvider<RolloutBatch> {
  struct Stream {
    std::optional<std::vector<RolloutBatch>> next() const {
      std::vector<d9d::TokenSample> samples;
      std::vector<at::Tensor> log_probs;
      std::vector<double> advantages;
      for (std::size_t i = rank; i < rollouts.all.size(); i += num_ranks) {
        const Rollout& rollout = rollouts.all[i];
        Tokens tokens(rollouts.prompt.begin(), rollouts.prompt.end());
        tokens.insert(tokens.end(), rollout.completion.begin(), rollout.completion.end());
        samples.push_back(d9d::next_token_sample(at::tensor(tokens, at::kLong)));
        const std::int64_t num_of_prompt = std::ssize(rollouts.prompt) - 1;  // labels
        samples.back().labels = samples.back().labels.clone();
        samples.back().labels.narrow(0, 0, num_of_prompt).fill_(d9d::kIgnoreIndex);
        log_probs.push_back(at::constant_pad_nd(at::tensor(rollout.log_probs, at::kFloat), {num_of_prompt, 0}));
        advantages.push_back(rollout.advantage);
      }
      const d9d::TokenBatch tokens = d9d::collate_fixed_to_multiple(samples, position_divisor);
      const std::int64_t num_padding = tokens.input_ids.size(1) - log_probs.front().size(0);
      return std::vector{RolloutBatch{.tokens = tokens,
                                      .log_probs = at::constant_pad_nd(at::stack(log_probs), {0, num_padding}),
                                      .advantages = at::tensor(advantages, at::kFloat)}};
    }
    static std::optional<std::int64_t> total_steps() { return std::nullopt; }
    nlohmann::json state() const { return rollouts.all; }
    void load_state(const nlohmann::json& state) { rollouts.all = state.get<std::vector<Rollout>>(); }
    Rollouts& rollouts;
    std::size_t rank, num_ranks;    // data-parallel
    std::int64_t position_divisor;  // of the ranks that share a sequence
  };
  std::unique_ptr<d9d::PackStream<RolloutBatch>> build_pack_stream(const d9d::DistContext& context,
                                                                   std::optional<std::int64_t>) override {
    return d9d::as_pack_stream<RolloutBatch>(Stream{*this, static_cast<std::size_t>(context.data_parallel_rank()),
                                                    static_cast<std::size_t>(context.data_parallel_size()),
                                                    context.mesh_parameters().position_divisor()});
  }
  std::string prompt;
  std::vector<Rollout> all;  // of all ranks, so that a checkpoint has one state of the data
};

// Sets the advantages, and returns the mean reward.
double compare(std::vector<Rollout>& rollouts) {
  double sum = 0, squares = 0;
  for (const Rollout& rollout : rollouts) {
    const double reward = reward_of(rollout.completion);
    sum += reward;
    squares += reward * reward;
  }
  const auto count = static_cast<double>(rollouts.size());
  const double mean = sum / count, deviation = std::sqrt(std::max(squares / count - mean * mean, 0.0));
  for (Rollout& rollout : rollouts) rollout.advantage = (reward_of(rollout.completion) - mean) / (deviation + 1e-4);
  return mean;
}

// What all programs use of the device; 0 without one.
double gib_in_use(c10::Device device) {
  if (device.is_cpu()) return 0;
  const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
  return static_cast<double>(total - free) / (1 << 30);
}

void train(const Config& config, d9d::DistContext& context) {
  const double before = gib_in_use(context.device());
  const auto sizes = d9d::causal_lm_sizes(d9d::kQwen3Dense, config.model_provider,
                                          config.trainer.model_stage_factory.source_checkpoint);
  check(config, sizes);
  GrpoTask task(context, config.rollouts.clip);
  d9d::CausalLMProvider<d9d::Qwen3DenseParameters, GrpoTypes> model(d9d::kQwen3Dense, config.model_provider, sizes);
  Rollouts data;
  data.prompt = config.rollouts.prompt;
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<GrpoTypes> trainer(
      context, config.trainer,
      {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});

  const auto run_round = [&](std::int64_t round) {
    trainer.export_to(config.rollouts.weights);  // on any layout, one whole model
    const double training = gib_in_use(context.device());
    trainer.sleep({d9d::SleepTag::kTensorStates, d9d::SleepTag::kComms});
    const double asleep = gib_in_use(context.device());
    std::vector<Rollout> own;
    double generating = 0;
    {
      const Engine engine(config, context.device());
      const std::int64_t part = round * context.data_parallel_size() + context.data_parallel_rank();
      own = engine.complete(config.rollouts, part * config.rollouts.num_rollouts);
      generating = gib_in_use(context.device());
    }
    if (!context.device().is_cpu()) at::accelerator::emptyCache();
    trainer.wake();
    data.all.clear();
    for (const auto& of_rank : d9d::all_gather_object(own, context.mesh(d9d::MeshDomain::kBatch).slice({"dp"}))) {
      for (const auto& rollout : of_rank) data.all.push_back(rollout.get<Rollout>());
    }
    const double mean_reward = compare(data.all);
    if (!context.is_main_process()) return;
    context.log().info("round ", round, ": mean reward ", mean_reward);
    if (context.device().is_cpu()) return;
    context.log().info("GiB in use of the device: ", before, " before the job, ", training, " while it trains, ",
                       asleep, " while it sleeps, ", generating, " while the engine generates");
  };
  trainer.events().subscribe(d9d::kTrainReady, [&](const auto&) {
    if (trainer.schedule().current_step() == 0) run_round(0);
  });
  trainer.events().subscribe(d9d::kTrainStepPost, [&](const d9d::TrainStep& step) {
    const std::int64_t num_done = step.schedule.current_step() + 1;
    if (num_done % config.rollouts.num_steps == 0) run_round(num_done / config.rollouts.num_steps);
  });
  trainer.train();
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }
