// Reinforcement learning in which training and generation share the devices: the trainer sleeps while a rollout engine
// generates, and the engine is gone while the trainer trains. Usage:
//   colocated_rl examples/colocated_rl/config.json [key.path=value ...]
//
// Each round: the policy is exported; the trainer sleeps; the engine loads the policy, completes the prompt many times
// and is destroyed; the trainer wakes and trains on the completions with the highest reward. The engine is a stand-in
// for one such as vLLM or SGLang: it allocates as much memory as a KV cache takes (rollouts.cache_gib).
#include <algorithm>
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
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/families.h"

namespace {

struct RolloutConfig {
  std::string prompt = {};
  std::int64_t num_rollouts = 1;  // completions of each data-parallel rank in a round
  std::int64_t num_kept = 1;      // of them are trained on, those with the highest reward
  std::int64_t num_tokens = 1;    // bytes of a completion
  std::int64_t num_steps = 1;     // of training between two rounds
  double cache_gib = 0;           // memory of the engine besides its weights
  std::filesystem::path weights;  // the folder in which the engine gets the policy
  static constexpr auto fields() {
    using Config = RolloutConfig;
    return d9d::record<Config>(d9d::required("prompt", &Config::prompt),
                               d9d::required("num_rollouts", &Config::num_rollouts, d9d::at_least(1)),
                               d9d::required("num_kept", &Config::num_kept, d9d::at_least(1)),
                               d9d::required("num_tokens", &Config::num_tokens, d9d::at_least(1)),
                               d9d::required("num_steps", &Config::num_steps, d9d::at_least(1)),
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
  D9D_CHECK(rollouts.num_kept <= rollouts.num_rollouts, d9d::ConfigError,
            "[config] rollouts.num_kept: expected at most ", rollouts.num_rollouts, ", rollouts.num_rollouts, got ",
            rollouts.num_kept, ". Lower it.");
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

// The stand-in for a rollout engine: a model of its own in the memory that the trainer has given back.
class Engine {
 public:
  Engine(const Config& config, const d9d::Qwen3DenseParameters& sizes, c10::Device device)
      : model_(d9d::make_decoder_for_causal_lm(d9d::kQwen3Dense.build(sizes, {}), config.model_provider.head)),
        cache_(at::empty({static_cast<std::int64_t>(config.rollouts.cache_gib * (1 << 30))},
                         at::device(device).dtype(at::kByte))) {
    const d9d::HuggingFaceDirectory policy(config.rollouts.weights);
    model_->to(d9d::to_scalar_type(config.model_provider.dtype));
    model_->materialize(device);
    model_->reset_parameters(/*base_seed=*/0);  // also computes tables that no file has
    d9d::load_model_state(*model_, d9d::kQwen3Dense.from_huggingface(sizes, d9d::CausalLMHeadConfig{}, policy.names()),
                          d9d::tensors_of(policy));
  }
  [[nodiscard]] Tokens complete(const RolloutConfig& config, std::uint64_t seed) const {
    const Tokens prompt(config.prompt.begin(), config.prompt.end());
    return d9d::generate(model_, prompt, {.num_tokens = config.num_tokens, .temperature = 1.0, .seed = seed});
  }

 private:
  const d9d::ModulePtr<d9d::DecoderForCausalLM> model_;
  const at::Tensor cache_;
};

// The completions that the job trains on until the next round. In every step a rank has its share as one microbatch.
struct Rollouts : d9d::DataProvider<d9d::TokenBatch> {
  struct Stream {
    std::optional<std::vector<d9d::TokenBatch>> next() const {
      std::vector<d9d::TokenSample> samples;
      for (std::size_t i = rank; i < rollouts.kept.size(); i += num_ranks) {
        const Tokens& completion = rollouts.kept[i];
        Tokens all(rollouts.prompt.begin(), rollouts.prompt.end());
        all.insert(all.end(), completion.begin(), completion.end());
        samples.push_back(d9d::next_token_sample(at::tensor(all, at::kLong)));
        at::Tensor& labels = samples.back().labels;
        labels = labels.clone();
        labels.narrow(0, 0, std::ssize(rollouts.prompt) - 1).fill_(d9d::kIgnoreIndex);  // of the prompt
      }
      return std::vector{d9d::collate_fixed(samples)};
    }
    static std::optional<std::int64_t> total_steps() { return std::nullopt; }
    nlohmann::json state() const { return rollouts.kept; }
    void load_state(const nlohmann::json& state) { rollouts.kept = state.get<std::vector<Tokens>>(); }
    Rollouts& rollouts;
    std::size_t rank, num_ranks;  // data-parallel
  };
  std::unique_ptr<d9d::PackStream<d9d::TokenBatch>> build_pack_stream(const d9d::DistContext& context,
                                                                      std::optional<std::int64_t>) override {
    return d9d::as_pack_stream<d9d::TokenBatch>(Stream{*this, static_cast<std::size_t>(context.data_parallel_rank()),
                                                       static_cast<std::size_t>(context.data_parallel_size())});
  }
  std::string prompt;
  std::vector<Tokens> kept;  // of all ranks, so that a checkpoint has one state of the data
};

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
  d9d::LanguageModelTask task(context);
  d9d::CausalLMProvider model(d9d::kQwen3Dense, config.model_provider, sizes);
  Rollouts data;
  data.prompt = config.rollouts.prompt;
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<d9d::LanguageModelTypes> trainer(
      context, config.trainer,
      {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});

  const auto run_round = [&](std::int64_t round) {
    trainer.export_to(config.rollouts.weights);  // on any layout, one whole model
    const double training = gib_in_use(context.device());
    trainer.sleep({d9d::SleepTag::kTensorStates, d9d::SleepTag::kComms});
    const double asleep = gib_in_use(context.device());
    std::vector<std::pair<double, Tokens>> rollouts;
    double sum = 0, generating = 0;
    {
      const Engine engine(config, sizes, context.device());
      for (std::int64_t i = 0; i < config.rollouts.num_rollouts; ++i) {
        const std::int64_t number =
            (round * context.data_parallel_size() + context.data_parallel_rank()) * config.rollouts.num_rollouts + i;
        const Tokens completion = engine.complete(config.rollouts, static_cast<std::uint64_t>(number));
        rollouts.emplace_back(reward_of(completion), completion);
        sum += rollouts.back().first;
      }
      generating = gib_in_use(context.device());
    }
    if (!context.device().is_cpu()) at::accelerator::emptyCache();
    trainer.wake();
    std::ranges::sort(rollouts, std::greater<>(), &std::pair<double, Tokens>::first);
    std::vector<Tokens> best;
    for (std::int64_t i = 0; i < config.rollouts.num_kept; ++i) best.push_back(rollouts[i].second);
    data.kept.clear();
    for (const auto& of_rank : d9d::all_gather_object(best, context.mesh(d9d::MeshDomain::kBatch).slice({"dp"}))) {
      for (const auto& completion : of_rank) data.kept.push_back(completion.get<Tokens>());
    }
    if (!context.is_main_process()) return;
    context.log().info("round ", round, ": mean reward ", sum / static_cast<double>(config.rollouts.num_rollouts));
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
