#include "d9d/models/decoder/generate.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/blocks/attention/key_value_cache.h"
#include "d9d/blocks/positional/rotary_embedding.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/models/decoder/choose_tokens.h"
#include "d9d/models/decoder/decoding_batch.h"
#include "d9d/modules/eval_scope.h"
#include "d9d/modules/mixed_precision.h"

namespace d9d {
namespace {

using Prompts = std::vector<std::vector<std::int64_t>>;

TokenChoice choice_of(const GenerateOptions& options) {
  return {.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p};
}

// The number of latest tokens that the model sees.
std::int64_t max_sequence(DecoderForCausalLM& model, const GenerateOptions& options) {
  if (options.max_sequence > 0) return options.max_sequence;
  std::int64_t positions = std::numeric_limits<std::int64_t>::max();
  model.for_each_module([&](const std::string&, Module& module) {
    const auto* const rope = dynamic_cast<const RotaryEmbeddingProvider*>(&module);
    if (rope != nullptr) positions = std::min(positions, rope->config.max_position_ids);
  });
  return positions;
}

void check(const Prompts& prompts, const DecoderForCausalLM& model, const GenerateOptions& options) {
  D9D_CHECK(options.max_sequence >= 0 && options.num_tokens >= 0, ConfigError,
            "[models::generate] expected max_sequence and num_tokens of 0 or above, got ", options.max_sequence,
            " and ", options.num_tokens, ".");
  check_token_choice(choice_of(options), "models::generate");
  const std::int64_t vocabulary_size = model.model->vocabulary().total();
  for (const auto& prompt : prompts) {
    D9D_CHECK(!prompt.empty(), ConfigError, "[models::generate] expected a prompt of at least one token, got none.");
    for (const std::int64_t id : prompt) {
      D9D_CHECK(id >= 0 && id < vocabulary_size, ConfigError,
                "[models::generate] expected ids below the model's vocabulary of ", vocabulary_size, ", got ", id,
                ". Encode the prompt with the tokenizer that belongs to the model.");
    }
  }
}

// The points at which the sequences draw their i-th token, [N] double.
at::Tensor draws(const std::vector<std::int64_t>& sequences, std::int64_t i, const GenerateOptions& options) {
  const std::uint64_t key = philox_key(options.seed, "generate", "");
  std::vector<double> points;
  for (const std::int64_t sequence : sequences) {
    const PhiloxCounter counter{.low = static_cast<std::uint64_t>(options.first_sequence + sequence),
                                .high = static_cast<std::uint64_t>(i)};
    const PhiloxWords words = philox4x32(counter, key);
    points.push_back(uniform_double(words[0], words[1]));
  }
  return at::tensor(points, at::kDouble);
}

// Collective over `ranks`, which have the same sequences. Chooses a token for each row of logits [N, V], [N].
at::Tensor choose(const at::Tensor& logits, const at::Tensor& points, const GenerateOptions& options,
                  const DeviceMesh& ranks) {
  const at::Tensor ids = choose_tokens(logits, choice_of(options), points);
  if (ranks.num_ranks() > 1 && ids.numel() > 0) ranks.communicator()->broadcast(ids, 0).wait();
  return ids;
}

bool is_stop(std::int64_t id, const GenerateOptions& options) {
  return std::ranges::find(options.stop_ids, id) != options.stop_ids.end();
}

// Collective over `ranks`. Returns whether any has something.
bool any(bool has, const DeviceMesh& ranks, at::Device device) {
  if (ranks.num_ranks() == 1) return has;
  at::Tensor count = at::full({1}, has ? 1 : 0, at::TensorOptions(device).dtype(at::kLong));
  ranks.communicator()->all_reduce(count, ReduceOp::kMax).wait();
  return count.item<std::int64_t>() > 0;
}

// Continues the prompts with a cache. token_ranks: those with the same prompts, which take the same tokens.
std::vector<GeneratedSequence> decode(const ModulePtr<DecoderForCausalLM>& model, const Prompts& prompts,
                                      const GenerateOptions& options, const DeviceMesh& token_ranks) {
  round_parameters(*model);  // the program may have changed parameters
  const EvalScope eval_scope({model.shared()});
  const at::NoGradGuard no_grad;
  const at::Device device = model->head->weights.front()->stored().device();
  std::vector<GeneratedSequence> results(prompts.size());
  std::vector<at::Tensor> log_probs;                 // of each step, on the device
  std::vector<std::vector<std::int64_t>> sequences;  // to which these belong
  const auto generate_all = [&] {
    DecodingBatch batch(model, prompts,
                        {.num_new_tokens = options.num_tokens, .sequence_ranks = options.sequence_ranks});
    for (std::int64_t i = 0; i < options.num_tokens; ++i) {
      if (!any(!batch.active().empty(), options.ranks, device)) break;
      const at::Tensor logits = batch.next_logits();
      const at::Tensor ids = choose(logits, draws(batch.active(), i, options), options, token_ranks);
      const at::Tensor scores = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
      const at::Tensor of_ids = scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1);
      log_probs.push_back((of_ids - scores.logsumexp(-1)).to(at::kDouble));
      sequences.push_back(batch.active());
      const at::Tensor here = ids.cpu();
      batch.append({here.const_data_ptr<std::int64_t>(), sequences.back().size()});
      for (std::size_t n = 0; n < sequences.back().size(); ++n) {
        const std::int64_t sequence = sequences.back()[n], id = here.const_data_ptr<std::int64_t>()[n];
        results[static_cast<std::size_t>(sequence)].ids.push_back(id);
        if (options.on_token) options.on_token(id, sequence);
        if (is_stop(id, options)) batch.end(sequence);
      }
    }
  };
  SideStream(device).run(generate_all).wait();  // no graph is recorded on the default stream
  if (log_probs.empty()) return results;
  const at::Tensor all = at::cat(log_probs).cpu();
  const double* next = all.const_data_ptr<double>();
  for (const auto& of_step : sequences) {
    for (const std::int64_t sequence : of_step)
      results[static_cast<std::size_t>(sequence)].log_probs.push_back(*next++);
  }
  return results;
}

// Computes the whole sequence for every token.
std::vector<std::int64_t> generate_without_cache(TokenModel& model, std::vector<std::int64_t> tokens,
                                                 std::int64_t num_seen, const GenerateOptions& options) {
  std::vector<std::shared_ptr<Module>> parts;
  for (const auto& part : model.parts()) parts.push_back(part.shared());
  const EvalScope eval_scope(parts);
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> generated;
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const std::int64_t length = std::min<std::int64_t>(std::ssize(tokens), num_seen);
    const at::Tensor ids = at::from_blob(tokens.data() + std::ssize(tokens) - length, {1, length}, at::kLong).clone();
    const at::Tensor logits = model.last_logits(ids, options.sequence_ranks).unsqueeze(0);
    tokens.push_back(choose(logits, draws({0}, i, options), options, options.ranks).item<std::int64_t>());
    generated.push_back(tokens.back());
    if (options.on_token) options.on_token(tokens.back(), 0);
    if (is_stop(tokens.back(), options)) break;
  }
  return generated;
}

}  // namespace

std::vector<std::int64_t> generate(TokenModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  DecoderForCausalLM& part = *model.parts().front();
  check({prompt}, part, options);
  const std::int64_t num_seen = max_sequence(part, options);
  const ModulePtr<DecoderForCausalLM> whole = model.whole();
  if (whole && std::ssize(prompt) + options.num_tokens <= num_seen &&
      can_decode_with_cache(*whole, options.sequence_ranks)) {
    try {
      return decode(whole, {prompt}, options, options.ranks).front().ids;
    } catch (const UncachedAttentionError&) {  // of the first forward, on all ranks
    }
  }
  return generate_without_cache(model, std::move(prompt), num_seen, options);
}

std::vector<GeneratedSequence> generate_batch(const ModulePtr<DecoderForCausalLM>& model, const Prompts& prompts,
                                              const GenerateOptions& options) {
  agreed(options.ranks, [&] {
    check(prompts, *model, options);
    D9D_CHECK(
        can_decode_with_cache(*model, options.sequence_ranks), ConfigError,
        "[models::generate_batch] expected a model in one piece, without context parallelism, all of whose layers "
        "attend through Sdpa without a mask, got another one. Use generate().");
    const std::int64_t most = max_sequence(*model, options);
    for (const auto& prompt : prompts) {
      D9D_CHECK(std::ssize(prompt) + options.num_tokens <= most, ConfigError,
                "[models::generate_batch] expected prompts that have with num_tokens = ", options.num_tokens,
                " at most ", most, " positions, got one of ", prompt.size(),
                ". Generate fewer tokens, or cut the prompt off.");
    }
  });
  return decode(model, prompts, options, options.sequence_ranks);
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
