// Several named embedding tables that together form one vocabulary, in order: for instance base tokens, and prompt
// tokens which are the only ones that are trained.
//
// Example
//   const VocabularySplits vocabulary{.sizes = {{"base", 151643}, {"prompt", 20}}, .order = {"base", "prompt"}};
//   auto embeddings = make_module<SplitTokenEmbeddings>(vocabulary, /*hidden_size=*/1024);   // prompts: ids 151643..
#pragma once

#include <vector>

#include "d9d/blocks/embedding/split_weights.h"
#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/modules/module.h"

namespace d9d {

// Who reads the tables of an embedding.
enum class EmbeddingUse : std::uint8_t {
  kLookup,
  kLookupAndHead,  // a head is tied to it, on this pipeline stage or another one
  kHead,           // the head of this stage; another stage looks ids up
};

// State: token_embedding.<split>.weight [size, H], initially from N(0, 1). With an adapter of rank r also
// lora_A.<split>.weight [size, r], initially 0, and lora_B.weight [H, r], initially from N(0, 1), as in Hugging Face
// peft, which has A transposed. A head that is tied to the embedding does not read its adapter.
class SplitTokenEmbeddings : public Adaptable<SplitWeights, Linear> {
 public:
  SplitTokenEmbeddings(VocabularySplits vocabulary, std::int64_t hidden_size, EmbeddingUse use = EmbeddingUse::kLookup);
  // ids [...] int64, global -> [..., H]. On the CPU an id outside of the vocabulary is a ConfigError that names it. On
  // a GPU it ends the program with a device-side assertion if the rank holds the vocabulary as one complete table; with
  // several tables, or parts of tables, its row is NaN, and so is the step's loss. Under tensor parallelism a rank
  // holds some rows of each table: ids [B, S] -> [B, S / W, H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids) const;

  // Local. Puts a new adapter, see Adaptable. Like peft it has no dropout, whatever the configuration says.
  void add_adapter(const LowRankConfig& config);

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override { tensor_parallel_ = std::move(context); }

  const VocabularySplits vocabulary;
  const EmbeddingUse use;
  const std::vector<ParameterPtr> weights;  // in the order of the splits

 private:
  // Rows of tables, one a split, [..., width]; those of other ranks are zero.
  [[nodiscard]] at::Tensor rows(const std::vector<ParameterPtr>& tables, const at::Tensor& ids) const;

  TensorParallelContextPtr tensor_parallel_ = std::make_shared<LocalTensorParallelContext>();
};

}  // namespace d9d
