// Next-token loss from hidden states, without ever holding the logits.
//
// Example
//   auto head = make_module<LanguageModellingHead>(vocabulary, /*hidden_size=*/1024);
//   auto output = head(hidden_states, LanguageModellingShared{.labels = labels});
//   output.cross_entropy     // [B, S]
#pragma once

#include <vector>

#include "d9d/base/ignore_index.h"
#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/modules/module.h"

namespace d9d {

struct LanguageModellingShared {
  at::Tensor labels;  // [B, S] int64 global token ids, already shifted; kIgnoreIndex to leave a position out
  static constexpr auto fields() {
    return record<LanguageModellingShared>(field("labels", &LanguageModellingShared::labels));
  }
};

struct LanguageModellingOutput {
  at::Tensor cross_entropy;  // [B, S], at least fp32; exactly 0 where ignored
  static constexpr auto fields() {
    return record<LanguageModellingOutput>(field("cross_entropy", &LanguageModellingOutput::cross_entropy));
  }
};

// State: lm_head.<split>.weight [size, H], from U(-1/sqrt(H), 1/sqrt(H)).
class LanguageModellingHead : public Module {
 public:
  using Shared = LanguageModellingShared;
  using Output = LanguageModellingOutput;

  LanguageModellingHead(VocabularySplits vocabulary, std::int64_t hidden_size);
  // Tied to an embedding: uses its matrices and adds none to the state dict.
  LanguageModellingHead(VocabularySplits vocabulary, std::vector<ParameterPtr> embedding_weights);

  // hidden_states [B, S, H]; under tensor parallelism shards of the sequence, and labels whole.
  [[nodiscard]] LanguageModellingOutput forward(const at::Tensor& hidden_states,
                                                const LanguageModellingShared& shared) const;
  // The logits [..., V] of hidden states [..., H], for generation and distillation; under tensor parallelism of shards
  // of the sequence, [B, S / W, H] -> [B, S, V].
  [[nodiscard]] at::Tensor forward(const at::Tensor& hidden_states) const;

  // Puts another context in the place of the local one (tensor parallelism).
  void set_vocabulary_context(VocabularyContextPtr context) { context_ = std::move(context); }

  const VocabularySplits vocabulary;
  const std::vector<ParameterPtr> weights;  // in the order of the splits

 private:
  VocabularyContextPtr context_ = std::make_shared<LocalVocabularyContext>();
};

}  // namespace d9d
