#include "d9d/models/decoder/generate.h"

#include <algorithm>
#include <cmath>
#include <exception>
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

constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;  // kernels count them in int32

TokenChoice choice_of(const GenerateOptions& options) {
  return {.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p};
}

// The number of latest tokens that the model sees.
std::int64_t max_sequence(DecoderForCausalLM& model, const GenerateOptions& options) {
  std::int64_t positions = options.max_sequence > 0 ? std::min(options.max_sequence, kMostPositions) : kMostPositions;
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

// A token for each row of logits, and the logarithm of its probability: NaN if not all logits are numbers.
struct Chosen {
  std::vector<std::int64_t> ids;
  std::vector<double> log_probs;
};

// Collective over `ranks`, which have the same sequences. Chooses from logits [N, V].
Chosen choose(const at::Tensor& logits, const at::Tensor& points, const GenerateOptions& options,
              const DeviceMesh& ranks) {
  const at::Tensor ids = choose_tokens(logits, choice_of(options), points);
  if (ranks.num_ranks() > 1 && ids.numel() > 0) ranks.communicator()->broadcast(ids, 0).wait();
  const at::Tensor scores = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
  const at::Tensor log_probs = scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scores.logsumexp(-1);
  const at::Tensor both = at::stack({ids.to(at::kDouble), log_probs.to(at::kDouble)}).cpu();
  const double* const first = both.const_data_ptr<double>();
  Chosen chosen;
  for (std::int64_t n = 0; n < ids.numel(); ++n) {
    chosen.ids.push_back(static_cast<std::int64_t>(first[n]));
    chosen.log_probs.push_back(first[ids.numel() + n]);
  }
  return chosen;
}

bool is_stop(std::int64_t id, const GenerateOptions& options) {
  return std::ranges::find(options.stop_ids, id) != options.stop_ids.end();
}

// What ranks do alone with their tokens, between forwards in which all take part: if it fails on one, all end together.
class LocalWork {
 public:
  explicit LocalWork(const DeviceMesh& ranks) : ranks_(ranks) {}

  // Local. Does what is to be done with a new token.
  void take(std::int64_t id, double log_prob, std::int64_t sequence, const GenerateOptions& options) {
    if (error_) return;
    try {
      D9D_CHECK(!std::isnan(log_prob), StateError,
                "[models::generate] expected logits that are numbers, got others from the model for sequence ",
                sequence, ". Look for NaN in its weights, or compute in a dtype of a larger range.");
      if (options.on_token) options.on_token(id, sequence);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  // Collective. Returns whether any rank has more to do. If take() has failed on any, all throw: that rank its error.
  [[nodiscard]] bool continues(bool has_more, at::Device device) const {
    const auto rethrow = [this] {
      if (error_) std::rethrow_exception(error_);
    };
    if (ranks_.num_ranks() == 1) {
      rethrow();
      return has_more;
    }
    const at::Tensor most = at::full({1}, error_ ? 2 : (has_more ? 1 : 0), at::device(device).dtype(at::kLong));
    ranks_.communicator()->all_reduce(most, ReduceOp::kMax).wait();
    const auto state = most.item<std::int64_t>();
    if (state == 2) agreed(ranks_, rethrow);
    return state == 1;
  }

 private:
  const DeviceMesh ranks_;
  std::exception_ptr error_;
};

// Continues the prompts with a cache. token_ranks: those with the same prompts, which take the same tokens.
std::vector<GeneratedSequence> decode(const ModulePtr<DecoderForCausalLM>& model, const Prompts& prompts,
                                      const GenerateOptions& options, const DeviceMesh& token_ranks) {
  round_parameters(*model);  // the program may have changed parameters
  const EvalScope eval_scope({model.shared()});
  const at::NoGradGuard no_grad;
  const at::Device device = model->head->weights.front()->stored().device();
  std::vector<GeneratedSequence> results(prompts.size());
  const auto generate_all = [&] {
    DecodingBatch batch(model, prompts,
                        {.num_new_tokens = options.num_tokens, .sequence_ranks = options.sequence_ranks});
    LocalWork work(options.ranks);
    for (std::int64_t i = 0; work.continues(i < options.num_tokens && !batch.active().empty(), device); ++i) {
      const std::vector<std::int64_t> sequences = batch.active();
      const Chosen chosen = choose(batch.next_logits(), draws(sequences, i, options), options, token_ranks);
      batch.append(chosen.ids);
      for (std::size_t n = 0; n < sequences.size(); ++n) {
        GeneratedSequence& result = results[static_cast<std::size_t>(sequences[n])];
        result.ids.push_back(chosen.ids[n]);
        result.log_probs.push_back(chosen.log_probs[n]);
        work.take(chosen.ids[n], chosen.log_probs[n], sequences[n], options);
        if (is_stop(chosen.ids[n], options)) batch.end(sequences[n]);
      }
    }
  };
  SideStream(device).run(generate_all).wait();  // no graph is recorded on the default stream
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
  LocalWork work(options.ranks);
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const std::int64_t length = std::min<std::int64_t>(std::ssize(tokens), num_seen);
    const at::Tensor ids = at::from_blob(tokens.data() + std::ssize(tokens) - length, {1, length}, at::kLong).clone();
    const at::Tensor logits = model.last_logits(ids, options.sequence_ranks).unsqueeze(0);
    const Chosen chosen = choose(logits, draws({0}, i, options), options, options.ranks);
    const std::int64_t id = chosen.ids.front();
    tokens.push_back(id);
    generated.push_back(id);
    work.take(id, chosen.log_probs.front(), /*sequence=*/0, options);
    if (!work.continues(i + 1 < options.num_tokens && !is_stop(id, options), logits.device())) break;
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
  if (whole && options.num_tokens <= num_seen - std::ssize(prompt) &&
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
    std::int64_t num_positions = 0;
    for (const auto& prompt : prompts) {
      D9D_CHECK(options.num_tokens <= most - std::ssize(prompt), ConfigError,
                "[models::generate_batch] expected prompts that have with num_tokens = ", options.num_tokens,
                " at most ", most, " positions, got one of ", prompt.size(),
                ". Generate fewer tokens, or cut the prompt off.");
      num_positions += std::ssize(prompt) + options.num_tokens;
    }
    D9D_CHECK(num_positions <= kMostPositions, ConfigError,
              "[models::generate_batch] expected prompts and new tokens of together at most 2^30 positions, got ",
              num_positions, ". Give it fewer prompts at a time.");
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
