// Several named embedding tables that together form one vocabulary, in order: for instance base tokens, and prompt
// tokens that alone are trained.
//
// Example
//   const VocabularySplits vocabulary{.sizes = {{"base", 151643}, {"prompt", 20}}, .order = {"base", "prompt"}};
//   auto embeddings = make_module<SplitTokenEmbeddings>(vocabulary, /*hidden_size=*/1024);   // ids 151643.. are
//   prompts
#pragma once

#include <vector>

#include "d9d/modules/base/module.h"
#include "d9d/modules/blocks/embedding/vocabulary_splits.h"

namespace d9d {

// State: token_embedding.<split>.weight [size, H], from N(0, 1).
class SplitTokenEmbeddings : public Module {
 public:
  SplitTokenEmbeddings(VocabularySplits vocabulary, std::int64_t hidden_size);
  // ids [...] int64, global -> [..., H]. On CPU an id outside of the vocabulary is a ConfigError that names it; on a
  // GPU it ends the program with a device-side assertion.
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids) const;

  const VocabularySplits vocabulary;
  const std::vector<ParameterPtr> weights;  // in the order of the splits
};

}  // namespace d9d
