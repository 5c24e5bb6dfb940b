// Trains a decoder of one's own on the bytes of files: attention with biases, a window in every second layer and a
// rotation of half of each head, and a feed-forward of plain parameters. It trains on any mesh by JSON alone. Usage:
//   custom_decoder examples/custom_decoder/config.json [key.path=value ...]
#include <cmath>

#include <ATen/ATen.h>

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/launch/launch.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/decoder/pre_norm_decoder.h"

namespace {

// A plain struct that lists its fields. Unknown and missing keys and wrong values are refused.
struct Sizes {
  std::int64_t num_layers = 1;
  std::int64_t hidden_size = 1;
  std::int64_t inner_size = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_key_heads = 1;
  std::int64_t head_dim = 4;
  std::int64_t window = 1;  // earlier positions that every second layer sees
  static constexpr auto fields() {
    return d9d::record<Sizes>(d9d::required("num_layers", &Sizes::num_layers, d9d::at_least(1)),
                              d9d::required("hidden_size", &Sizes::hidden_size, d9d::at_least(1)),
                              d9d::required("inner_size", &Sizes::inner_size, d9d::at_least(1)),
                              d9d::required("num_heads", &Sizes::num_heads, d9d::at_least(1)),
                              d9d::required("num_key_heads", &Sizes::num_key_heads, d9d::at_least(1)),
                              d9d::required("head_dim", &Sizes::head_dim, d9d::at_least(4)),
                              d9d::required("window", &Sizes::window, d9d::at_least(0)));
  }
};

struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  d9d::DataConfig data = {};
  Sizes model = {};
  d9d::Dtype dtype = d9d::Dtype::kFloat32;
  d9d::FsdpConfig fsdp = {};
  d9d::TrainerConfig trainer = {};
  d9d::OptimizerConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};  // a folder for the trained weights; empty: none
  static constexpr auto fields() {
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
        d9d::required("data", &Config::data), d9d::required("model", &Config::model),
        d9d::defaulted("dtype", &Config::dtype), d9d::defaulted("fsdp", &Config::fsdp),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::defaulted("export_to", &Config::export_to));
  }
};

constexpr std::int64_t kNumBytes = 256;

// gain * relu(x U^T + b)^2, and back by D. Each rank of tensor parallelism has some of the inner features for all
// positions; between blocks it has all features of some positions.
struct FeedForward : d9d::Module {
  FeedForward(std::int64_t hidden, std::int64_t inner)
      : up(register_parameter("up", {.shape = {inner, hidden}, .init = normal(hidden)})),
        bias(register_parameter("bias", {.shape = {inner}, .init = d9d::init::zeros()})),
        gain(register_parameter("gain", {.shape = {inner}, .init = d9d::init::ones()})),
        down(register_parameter("down", {.shape = {hidden, inner}, .init = normal(inner)})) {}

  at::Tensor forward(const at::Tensor& x) const {                               // [B, S / W, hidden]
    const at::Tensor whole = tensor_parallel_->enter(x);                        // [B, S, hidden]
    const at::Tensor features = at::linear(whole, up->local(), bias->local());  // [B, S, inner / W]
    const at::Tensor inner = at::relu(features).square() * gain->local();
    return tensor_parallel_->leave(at::linear(inner, down->local()));  // of the sum over ranks [B, S / W, hidden]
  }

  // Which dim of each parameter follows the inner features.
  std::optional<d9d::TensorPlan> tensor_plan(std::int64_t /*num_ranks*/) const override {
    return d9d::TensorPlan{
        .parameters = {{up, d9d::Shard{0}}, {bias, d9d::Shard{0}}, {gain, d9d::Shard{0}}, {down, d9d::Shard{1}}}};
  }
  void set_tensor_parallel_context(d9d::TensorParallelContextPtr context) override {
    tensor_parallel_ = std::move(context);
  }

  static d9d::Initializer normal(std::int64_t num_inputs) {
    return d9d::init::normal(1 / std::sqrt(static_cast<double>(num_inputs)));
  }

  const d9d::ParameterPtr up, bias, gain, down;

 private:
  d9d::TensorParallelContextPtr tensor_parallel_ = std::make_shared<d9d::LocalTensorParallelContext>();
};

d9d::GroupedQueryAttentionConfig attention_of(const Sizes& sizes, std::int64_t layer) {
  return {.hidden_size = sizes.hidden_size,
          .num_attention_heads = sizes.num_heads,
          .num_key_value_heads = sizes.num_key_heads,
          .head_dim = sizes.head_dim,
          .qk_norm_eps = std::nullopt,
          .rope_dim = sizes.head_dim / 2,
          .has_qkv_bias = true,
          .has_output_bias = true,
          .window_left = layer % 2 == 1 ? std::optional(sizes.window) : std::nullopt,
          .sdpa_backend = std::nullopt};
}

struct Layer : d9d::DecoderLayer {
  Layer(const Sizes& sizes, std::int64_t index)
      : norm(register_module<d9d::RMSNorm>("norm", d9d::RMSNormConfig{sizes.hidden_size})),
        attention(register_module<d9d::GroupedQueryAttention>("attention", attention_of(sizes, index))),
        feed_forward(register_module<FeedForward>("feed_forward", sizes.hidden_size, sizes.inner_size)),
        mix(register_parameter("mix", {.shape = {sizes.hidden_size}, .init = d9d::init::ones()})) {}

  // Both at once, of the same norm.
  d9d::DecoderLayerOutput forward(const at::Tensor& x, const d9d::LayerContext& context) const override {
    const at::Tensor normed = norm(x);
    const at::Tensor attended = attention(normed, context.tables, std::optional<at::Tensor>(), context.shared.packed);
    return {.hidden_states = x + attended + feed_forward(normed) * mix->local(), .auxiliary_loss = std::nullopt};
  }

  // The layer's own parameter, which multiplies the positions that a rank has. Its blocks have plans of their own.
  std::optional<d9d::TensorPlan> tensor_plan(std::int64_t /*num_ranks*/) const override {
    return d9d::TensorPlan{.parameters = {{mix, d9d::Replicate{}}}};
  }

  const d9d::ModulePtr<d9d::RMSNorm> norm;
  const d9d::ModulePtr<d9d::GroupedQueryAttention> attention;
  const d9d::ModulePtr<FeedForward> feed_forward;
  const d9d::ParameterPtr mix;
};

// Builds each stage of a pipeline: the first has the embedding, the last the head, each its layers.
struct Provider : d9d::ModelProvider<d9d::LanguageModelTypes> {
  explicit Provider(const Config& configuration) : config(configuration) {}

  d9d::ModelStage<d9d::LanguageModelTypes> initialize_model_stage(const d9d::DistContext&,
                                                                  const d9d::PipelineStageInfo& stage) override {
    backbone = build(stage);
    model = d9d::make_decoder_for_causal_lm(backbone);
    model->to(d9d::to_scalar_type(config.dtype));
    return d9d::as_model_stage<d9d::LanguageModelTypes>(model);
  }
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::parallelize_decoder(context, *backbone, {model->head.shared()}, config.fsdp);
  }
  // All weights of all stages, by their names.
  d9d::ModelExport prepare_export(const d9d::Module&) override {
    return {.mapper = d9d::mapper::identities_of_module(*d9d::make_decoder_for_causal_lm(build({}))), .files = {}};
  }

  d9d::ModulePtr<d9d::PreNormDecoder> build(const d9d::PipelineStageInfo& stage) const {
    const d9d::PreNormDecoderConfig decoder{
        .hidden_size = config.model.hidden_size,
        .layers = {.num_layers = config.model.num_layers},
        .vocabulary = {.sizes = {{"bytes", kNumBytes}}, .order = {"bytes"}},
        .rope = {.base = 10000, .head_dim = config.model.head_dim / 2, .max_position_ids = 1024, .scaling = {}}};
    return d9d::make_module<d9d::PreNormDecoder>(
        decoder, d9d::DecoderStageOptions{.stage = stage},
        [this](std::int64_t index) { return d9d::make_module<Layer>(config.model, index); });
  }

  const Config& config;
  d9d::ModulePtr<d9d::PreNormDecoder> backbone;
  d9d::ModulePtr<d9d::DecoderForCausalLM> model;
};

void train(const Config& config, d9d::DistContext& context) {
  d9d::LanguageModelTask task(context, {.tells_padding = false});
  Provider provider(config);
  auto data = d9d::token_data_provider(config.data, {.vocabulary_size = kNumBytes, .max_positions = 1024},
                                       config.trainer.determinism.base_seed);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<d9d::LanguageModelTypes> trainer(
      context, config.trainer,
      {.task = task, .model = provider, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  if (!config.export_to.empty()) trainer.export_to(config.export_to);
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }
