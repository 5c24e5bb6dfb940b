// Next-token loss from hidden states, without materialising the logits.
//
// Example
//   auto head = make_module<LanguageModellingHead>(vocabulary, /*hidden_size=*/1024);
//   auto output = head(hidden_states, LanguageModellingShared{.labels = labels});
//   output.cross_entropy     // [B, S]
#pragma once

#include <vector>

#include "d9d/base/ignore_index.h"
#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/blocks/head/head_config.h"
#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/modules/module.h"

namespace d9d {

struct LanguageModellingShared {
  at::Tensor labels;  // [B, S] int64 global token ids, already shifted; kIgnoreIndex: no loss at the position
  static constexpr auto fields() {
    return record<LanguageModellingShared>(field("labels", &LanguageModellingShared::labels));
  }
};

struct LanguageModellingOutput {
  at::Tensor cross_entropy;  // [B, S], at least fp32; exactly 0 at ignored positions
  static constexpr auto fields() {
    return record<LanguageModellingOutput>(field("cross_entropy", &LanguageModellingOutput::cross_entropy));
  }
};

// State: lm_head.<split>.weight [size, H], initially from U(-1/sqrt(H), 1/sqrt(H)). With an adapter of rank r also
// lora_A.weight [r, H], initially so too, and lora_B.<split>.weight [size, r], initially 0. The adapter of a head that
// is tied to an embedding is the head's alone.
class LanguageModellingHead : public Adaptable<Linear, SplitWeights> {
 public:
  using Shared = LanguageModellingShared;
  using Output = LanguageModellingOutput;

  LanguageModellingHead(VocabularySplits vocabulary, std::int64_t hidden_size, const CausalLMHeadConfig& config = {});
  // Tied to an embedding: uses the embedding's matrices and adds none to the state dict.
  LanguageModellingHead(VocabularySplits vocabulary, std::vector<ParameterPtr> embedding_weights,
                        const CausalLMHeadConfig& config = {});

  // hidden_states [B, S, H]; under tensor parallelism they are shards of the sequence, while labels cover all of it.
  [[nodiscard]] LanguageModellingOutput forward(const at::Tensor& hidden_states,
                                                const LanguageModellingShared& shared) const;
  // Returns the logits [..., V] of hidden states [..., H], for generation and distillation. Under tensor parallelism
  // hidden states are shards of the sequence, [B, S / W, H] -> [B, S, V].
  [[nodiscard]] at::Tensor forward(const at::Tensor& hidden_states) const;

  // Local. Puts a new adapter, see Adaptable.
  void add_adapter(const LowRankConfig& config);

  [[nodiscard]] double training_flops(std::int64_t num_positions) const override;
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;
  // Replaces the local context.
  void set_vocabulary_context(VocabularyContextPtr context) { context_ = std::move(context); }

  const CausalLMHeadConfig config;
  const VocabularySplits vocabulary;
  const bool is_tied;
  const std::vector<ParameterPtr> weights;  // in the order of the splits

 private:
  VocabularyContextPtr context_ = std::make_shared<LocalVocabularyContext>();
};

}  // namespace d9d
