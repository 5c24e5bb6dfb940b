#include "d9d/models/decoder/generate.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

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

// ids [1, length] -> logits [V] of the last position, on all ranks. The sequence is padded to equal shards at its end,
// where causal attention does not see the padding.
at::Tensor last_logits(const DecoderForCausalLM& model, const at::Tensor& ids, const DeviceMesh& ranks) {
  const std::int64_t length = ids.size(1);
  const std::int64_t shard = (length + ranks.num_ranks() - 1) / ranks.num_ranks();
  const std::int64_t num_padding = shard * ranks.num_ranks() - length;
  const DeviceMesh positions = ranks.has_axis("cp") ? ranks.slice({"cp"}) : DeviceMesh();
  const auto of_this_rank = [&](const at::Tensor& row) {
    return context_parallel_shard(at::constant_pad_nd(row, {0, num_padding}), /*dim=*/1, positions);
  };
  const SequenceShared shared{.position_ids = of_this_rank(at::arange(length, ids.options()).unsqueeze(0)),
                              .hidden_states_agg_mask = std::nullopt};
  const at::Tensor hidden = model.model(SequenceInput{of_this_rank(ids)}, shared).hidden_states;
  // Each rank computes the row that would be the last one if the last position were in its shard; tensor parallelism
  // gathers these rows.
  const at::Tensor candidates = model.head(hidden.narrow(1, (length - 1) % shard, 1));
  const std::int64_t owner = (length - 1) / shard;
  const at::Tensor logits = candidates.select(1, owner % candidates.size(1)).squeeze(0).contiguous();
  if (positions.num_ranks() > 1) positions.communicator()->broadcast(logits, owner / candidates.size(1)).wait();
  return logits;
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
    const at::Tensor logits = last_logits(*model, ids, options.sequence_ranks);
    const RandomStream stream{.key = philox_key(options.seed, "generate", ""), .step = static_cast<std::uint64_t>(i)};
    tokens.push_back(of_first_rank(sample(logits, options.temperature, stream), options.ranks, device));
    generated.push_back(tokens.back());
    if (options.on_token) options.on_token(tokens.back());
    if (std::ranges::find(options.stop_ids, tokens.back()) != options.stop_ids.end()) break;
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
