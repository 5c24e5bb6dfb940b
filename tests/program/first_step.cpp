// Writes the whole gradients of a small model's first step over any layout, for layouts_rounding_test.py, as one
// safetensors file with loss, grad.<parameter> and, for experts, routing.<layer>.<sequence>.
//
//   first_step CONFIG.json key.path=value ...      FirstStepConfig below
#include <filesystem>

#include <ATen/ATen.h>

#include "d9d/core/dtensor/redistribute.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/launch/launch.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

#include "tests/oracle/routing_replay.h"

namespace d9d::test {
namespace {

struct FirstStepConfig {
  LaunchConfig launch = {};
  DeviceMeshParameters mesh = {};
  bool has_experts = false;
  bool checkpointing = false;
  std::int64_t num_sequences = 4;  // microbatches of one rank
  std::int64_t num_positions = 256;
  ContextParallelConfig context_parallel = {};
  Dtype dtype = Dtype::kFloat64;  // weights are representable in bfloat16 with any dtype
  FsdpConfig fsdp = {};
  GradientManagerConfig gradients = {};
  std::optional<std::filesystem::path> routing = {};  // a file of this program, whose choices of experts are replayed
  std::filesystem::path output = {};

  static constexpr auto fields() {
    using Config = FirstStepConfig;
    return record<Config>(
        defaulted("launch", &Config::launch), defaulted("mesh", &Config::mesh),
        defaulted("has_experts", &Config::has_experts), defaulted("checkpointing", &Config::checkpointing),
        defaulted("num_sequences", &Config::num_sequences), defaulted("num_positions", &Config::num_positions),
        defaulted("context_parallel", &Config::context_parallel), defaulted("dtype", &Config::dtype),
        defaulted("fsdp", &Config::fsdp), defaulted("gradients", &Config::gradients),
        defaulted("routing", &Config::routing), required("output", &Config::output));
  }
};

// Large enough for the kernels that real models use.
constexpr std::int64_t kVocabulary = 4096;

template <class Parameters>
Parameters small_decoder(std::int64_t num_positions) {
  Parameters parameters;
  parameters.layer.hidden_size = 256;
  parameters.layer.intermediate_size = 512;
  parameters.layer.num_attention_heads = 8;
  parameters.layer.num_key_value_heads = 4;
  parameters.layer.head_dim = 64;
  parameters.num_hidden_layers = 3;
  parameters.max_position_ids = num_positions;
  parameters.split_vocab_size = {{"all", kVocabulary}};
  parameters.split_vocab_order = {"all"};
  return parameters;
}

ModulePtr<PreNormDecoder> make_backbone(const FirstStepConfig& config) {
  const DecoderStageOptions options{.checkpointing = config.checkpointing};
  if (!config.has_experts) {
    return make_module<Qwen3DenseModel>(small_decoder<Qwen3DenseParameters>(config.num_positions), options);
  }
  auto parameters = small_decoder<Qwen3MoEParameters>(config.num_positions);
  parameters.layer.intermediate_size = 256;
  parameters.layer.num_experts = 8;
  parameters.layer.experts_top_k = 2;
  return make_module<Qwen3MoEModel>(parameters, options);
}

// Records a router's choices for each sequence, or replays given ones.
class SequenceRouting final : public ModuleHook {
 public:
  // Sets the chosen experts of the next sequence; undefined: the router's own choice.
  void begin(at::Tensor indices) {
    replay_ = indices.defined() ? std::make_unique<RoutingReplay>(std::move(indices)) : nullptr;
  }
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {}
  void after_forward(Module& module, const TensorRefs& outputs) override {
    if (replay_) replay_->after_forward(module, outputs);
    chosen_ = outputs[1].get();
  }
  [[nodiscard]] const at::Tensor& chosen() const { return chosen_; }

 private:
  std::unique_ptr<RoutingReplay> replay_;
  at::Tensor chosen_;  // [T, k]
};

struct Sequence {
  at::Tensor ids;     // [1, S]
  at::Tensor labels;  // [1, S]; in some sequences fewer labels count
};

Sequence sequence(std::int64_t number, std::int64_t num_positions) {
  const at::Tensor position = at::arange(num_positions + 1, at::kLong) + number * (num_positions + 1);
  constexpr std::int64_t kPrime = 4093;  // below the vocabulary; so no two chunks of a sequence are alike
  const at::Tensor tokens = (position * position * 2654435761 + position * 40503 + number).remainder(kPrime);
  at::Tensor labels = tokens.narrow(0, 1, num_positions).clone();
  labels.narrow(0, 0, 16 * number).fill_(-100);
  return {.ids = tokens.narrow(0, 0, num_positions).unsqueeze(0), .labels = labels.unsqueeze(0)};
}

class FirstStep {
 public:
  FirstStep(const FirstStepConfig& config, const DistContext& context) : context_(context), config_(config) {
    const auto backbone = make_backbone(config);
    model_ = make_decoder_for_causal_lm(backbone);
    model_->to(to_scalar_type(config.dtype));
    parallelize_decoder(context, *backbone, {model_->head.shared()}, config.fsdp, {}, config.context_parallel);
    model_->materialize(context.device());
    model_->reset_parameters(/*base_seed=*/11);
    for (const auto& [name, parameter] : model_->named_parameters()) {
      const at::Tensor values = parameter->stored().detach();
      values.copy_(values.to(at::kBFloat16));
    }
    model_->for_each_module([&](const std::string&, Module& module) {
      if (dynamic_cast<TopKRouter*>(&module) == nullptr) return;
      module.add_hook(routers_.emplace_back(std::make_shared<SequenceRouting>()));
    });
    if (config.routing) routing_.emplace(*config.routing);
  }

  // Collective. Returns what the program writes, as whole tensors on the first rank.
  std::vector<TensorSource> run() {
    GradientManager manager(context_, *model_, config_.gradients, {});
    const std::int64_t share = config_.num_sequences / context_.data_parallel_size();
    for (std::int64_t i = 0; i < share; ++i) {
      manager.begin_microbatch(i + 1 == share);
      run_microbatch(manager, context_.data_parallel_rank() * share + i);
      manager.end_microbatch();
    }
    const StepTotals report = manager.reduce_and_clip({.num_tokens = share * config_.num_positions});
    add("loss", at::scalar_tensor(report.loss, at::kDouble));
    for (const auto& [name, parameter] : model_->named_parameters()) {
      DTensor gradient = parameter->dtensor();
      gradient.local = parameter->stored().grad();
      add("grad." + name, full_tensor(gradient));
    }
    manager.close();
    return std::move(results_);
  }

 private:
  void run_microbatch(GradientManager& manager, std::int64_t number) {
    const PositionCut cut = context_parallel_cut(context_.mesh(MeshDomain::kBatch).slice({"cp"}));
    const auto here = [&](const at::Tensor& row) {
      return context_parallel_shard(row, /*dim=*/1, cut).to(context_.device());
    };
    const auto name_of = [&](std::size_t layer) { return cat("routing.", layer, ".", number); };
    const PositionCut of_router = cut.then(PositionCut(context_.mesh(MeshDomain::kBatch).slice({"tp"})));
    for (std::size_t layer = 0; layer < routers_.size(); ++layer) {
      const auto whole = [&] { return routing_->tensor(name_of(layer)).to(context_.device()); };
      routers_[layer]->begin(routing_ ? of_router.part_of(whole(), /*dim=*/0) : at::Tensor());
    }
    const auto [ids, labels] = sequence(number, config_.num_positions);
    const at::Tensor own_labels = here(labels);
    const at::Tensor positions = here(at::arange(config_.num_positions).unsqueeze(0));
    const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
        model_(SequenceInput{here(ids)}, DecoderForCausalLM::Shared{{positions, std::nullopt}, {own_labels}}));
    const at::Tensor weight = own_labels.ne(-100).sum().to(at::kDouble);
    const at::Tensor loss = output.head.cross_entropy.sum().to(at::kDouble) / weight.clamp_min(1);
    manager.add_loss_with_weight(loss.detach(), weight);
    (loss * weight).backward();
    if (routing_) return;
    for (std::size_t layer = 0; layer < routers_.size(); ++layer) add(name_of(layer), routers_[layer]->chosen());
  }

  void add(const std::string& name, const at::Tensor& value) {
    results_.push_back(tensor_source(name, value.detach().cpu().clone()));
  }

  const DistContext& context_;
  const FirstStepConfig config_;
  ModulePtr<DecoderForCausalLM> model_;
  std::vector<std::shared_ptr<SequenceRouting>> routers_;  // of the layers, in order
  std::optional<SafetensorsFile> routing_;
  std::vector<TensorSource> results_;
};

void run(const FirstStepConfig& config, DistContext& context) {
  std::vector<TensorSource> results = FirstStep(config, context).run();
  if (context.is_main_process()) write_safetensors(config.output, std::move(results));
}

}  // namespace
}  // namespace d9d::test

int main(int argc, char** argv) { return d9d::launch<d9d::test::FirstStepConfig>(argc, argv, d9d::test::run); }
