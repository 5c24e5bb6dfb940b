// Several named embedding tables that together form one vocabulary, in order: for instance base tokens, and prompt
// tokens which are the only ones that are trained.
//
// Example
//   const VocabularySplits vocabulary{.sizes = {{"base", 151643}, {"prompt", 20}}, .order = {"base", "prompt"}};
//   auto embeddings = make_module<SplitTokenEmbeddings>(vocabulary, /*hidden_size=*/1024);   // prompts: ids 151643..
#pragma once

#include <vector>

#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/modules/module.h"

namespace d9d {

// State: token_embedding.<split>.weight [size, H], initially from N(0, 1).
class SplitTokenEmbeddings : public Module {
 public:
  SplitTokenEmbeddings(VocabularySplits vocabulary, std::int64_t hidden_size);
  // ids [...] int64, global -> [..., H]. On the CPU an id outside of the vocabulary is a ConfigError that names it. On
  // a GPU it ends the program with a device-side assertion if the rank holds the vocabulary as one complete table; with
  // several tables, or parts of tables, its row is NaN, and so is the step's loss. Under tensor parallelism a rank
  // holds some rows of each table: ids [B, S] -> [B, S / W, H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids) const;

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override { tensor_parallel_ = std::move(context); }

  const VocabularySplits vocabulary;
  const std::vector<ParameterPtr> weights;  // in the order of the splits

 private:
  TensorParallelContextPtr tensor_parallel_ = std::make_shared<LocalTensorParallelContext>();
};

}  // namespace d9d
