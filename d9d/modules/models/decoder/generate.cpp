#include "d9d/modules/models/decoder/generate.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"

namespace d9d {
namespace {

// Inverse transform sampling from the softmax of logits [V].
std::int64_t sample(const at::Tensor& logits, double temperature, RandomStream stream) {
  if (temperature == 0.0) return logits.argmax().item<std::int64_t>();
  const at::Tensor cumulative = at::softmax(logits.to(at::kDouble) / temperature, -1).cumsum(0).cpu();
  const PhiloxWords words = philox4x32({.low = 0, .high = stream.step}, stream.key);
  const at::Tensor point = at::full({1}, uniform_double(words[0], words[1]), at::kDouble);
  return std::min(at::searchsorted(cumulative, point).item<std::int64_t>(), cumulative.numel() - 1);
}

}  // namespace

std::vector<std::int64_t> generate(const ModulePtr<DecoderForCausalLM>& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  D9D_CHECK(!prompt.empty(), ConfigError, "[models::generate] expected a prompt of at least one token, got none.");
  D9D_CHECK(model->head, ConfigError, "[models::generate] expected a model of one stage, got one without a head.");
  struct EvalScope {
    Module& module;
    bool was_training;
    ~EvalScope() { module.train(was_training); }
  } eval_scope{*model, model->is_training()};
  model->eval();
  const at::NoGradGuard no_grad;
  const c10::Device device = model->head->weights.front()->stored().device();
  std::vector<std::int64_t> tokens = std::move(prompt);
  std::vector<std::int64_t> generated;
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const std::int64_t length = std::min<std::int64_t>(std::ssize(tokens), options.max_sequence);
    const at::Tensor ids =
        at::from_blob(tokens.data() + std::ssize(tokens) - length, {1, length}, at::kLong).to(device);
    const SequenceShared shared{.position_ids = at::arange(length, ids.options()).unsqueeze(0),
                                .hidden_states_agg_mask = std::nullopt};
    const at::Tensor hidden = model->model(SequenceInput{ids}, shared).hidden_states.select(1, length - 1);
    const at::Tensor logits = model->head(hidden).squeeze(0);
    const RandomStream stream{.key = philox_key(options.seed, "generate", ""), .step = static_cast<std::uint64_t>(i)};
    tokens.push_back(sample(logits, options.temperature, stream));
    generated.push_back(tokens.back());
  }
  return generated;
}

std::string generate_bytes(const ModulePtr<DecoderForCausalLM>& model, std::string_view prompt,
                           const GenerateOptions& options) {
  std::vector<std::int64_t> ids;
  for (const char character : prompt) ids.push_back(static_cast<unsigned char>(character));
  std::string text;
  for (const std::int64_t id : generate(model, std::move(ids), options)) text += id < 256 ? static_cast<char>(id) : '?';
  return text;
}

}  // namespace d9d
