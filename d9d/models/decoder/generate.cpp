#include "d9d/models/decoder/generate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/modules/eval_scope.h"

namespace d9d {
namespace {

// Inverse transform sampling from the softmax of logits [V].
std::int64_t sample(const at::Tensor& logits, double temperature, RandomStream stream) {
  if (temperature == 0.0) return logits.argmax().item<std::int64_t>();
  const at::Tensor cumulative =
      // On the CPU, because cumsum has no deterministic kernel on GPUs.
      at::softmax(logits.to(at::kDouble) / temperature, -1).cpu().cumsum(0);
  const PhiloxWords words = philox4x32({.low = 0, .high = stream.step}, stream.key);
  const at::Tensor point = at::full({1}, uniform_double(words[0], words[1]), at::kDouble);
  return std::min(at::searchsorted(cumulative, point).item<std::int64_t>(), cumulative.numel() - 1);
}

std::int64_t of_first_rank(std::int64_t token, const DeviceMesh& ranks, c10::Device device) {
  if (ranks.num_ranks() == 1) return token;
  const at::Tensor shared = at::full({1}, token, at::TensorOptions(device).dtype(at::kLong));
  ranks.communicator()->broadcast(shared, 0).wait();
  return shared.item<std::int64_t>();
}

}  // namespace

std::vector<std::int64_t> generate(TokenModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  D9D_CHECK(!prompt.empty(), ConfigError, "[models::generate] expected a prompt of at least one token, got none.");
  D9D_CHECK(options.max_sequence >= 1 && options.num_tokens >= 0, ConfigError,
            "[models::generate] expected max_sequence >= 1 and num_tokens >= 0, got ", options.max_sequence, " and ",
            options.num_tokens, ".");
  D9D_CHECK(std::isfinite(options.temperature) && options.temperature >= 0, ConfigError,
            "[models::generate] expected a temperature of 0 or above, got ", options.temperature, ".");
  std::vector<std::shared_ptr<Module>> parts;
  for (const auto& part : model.parts()) parts.push_back(part.shared());
  const EvalScope eval_scope(parts);
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> tokens = std::move(prompt);
  std::vector<std::int64_t> generated;
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const std::int64_t length = std::min<std::int64_t>(std::ssize(tokens), options.max_sequence);
    const at::Tensor ids = at::from_blob(tokens.data() + std::ssize(tokens) - length, {1, length}, at::kLong).clone();
    const at::Tensor logits = model.last_logits(ids, options.sequence_ranks);
    const RandomStream stream{.key = philox_key(options.seed, "generate", ""), .step = static_cast<std::uint64_t>(i)};
    tokens.push_back(of_first_rank(sample(logits, options.temperature, stream), options.ranks, logits.device()));
    generated.push_back(tokens.back());
    if (options.on_token) options.on_token(tokens.back());
    if (std::ranges::find(options.stop_ids, tokens.back()) != options.stop_ids.end()) break;
  }
  return generated;
}

std::vector<std::int64_t> generate(const ModulePtr<DecoderForCausalLM>& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  return generate(*one_piece_decoder(model), std::move(prompt), options);
}

std::string generate_bytes(TokenModel& model, std::string_view prompt, const GenerateOptions& options) {
  std::vector<std::int64_t> ids;
  for (const char character : prompt) ids.push_back(static_cast<unsigned char>(character));
  std::string text;
  for (const std::int64_t id : generate(model, std::move(ids), options)) text += id < 256 ? static_cast<char>(id) : '?';
  return text;
}

std::string generate_bytes(const ModulePtr<DecoderForCausalLM>& model, std::string_view prompt,
                           const GenerateOptions& options) {
  return generate_bytes(*one_piece_decoder(model), prompt, options);
}

}  // namespace d9d
