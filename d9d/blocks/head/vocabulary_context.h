// How a language-modelling head gets access to its vocabulary. In the local form this rank holds all of it; tensor
// parallelism installs another form.
//
// Legend   B batch, S positions, H hidden size, V vocabulary, W ranks (1 in the local form)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "d9d/blocks/embedding/split_weights.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/dtensor/parameter.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

namespace d9d {

// When the gradients of the loss are computed. In forward, this saves a matrix product if the kernel for it is built
// (gradients_in_forward of kernels::linear_cross_entropy), and the gradients are kept until backward.
enum class HeadGradients : std::uint8_t { kInForward, kInBackward };

struct HeadLoss {
  HeadGradients gradients = HeadGradients::kInBackward;
  kernels::LinearCrossEntropyPreset preset = kernels::LinearCrossEntropyPreset::kCceExact;
};

// What a head multiplies hidden states with, in the order of the vocabulary.
struct HeadWeights {
  std::vector<ParameterPtr> rows;  // [V_s, H]
  // B [V_s, r], cut as the rows; A is whole on all ranks.
  std::optional<LowRankAdapter<Linear, SplitWeights>> adapter = {};

  [[nodiscard]] std::vector<at::Tensor> local_rows() const;
  // The adapter's term of the logits of this rank's rows, u [T, r] for hidden_states [..., H] of all T positions; none
  // without an adapter.
  [[nodiscard]] std::optional<kernels::LowRankLogits> low_rank(const at::Tensor& hidden_states) const;
  // Logits of the rows of each split on this rank, [..., rows].
  [[nodiscard]] std::vector<at::Tensor> local_logits(const at::Tensor& hidden_states) const;
};

class VocabularyContext {
 public:
  virtual ~VocabularyContext() = default;
  // Collective. hidden_states [B, S / W, H]; labels [B, S] int64, global ids or kIgnoreIndex -> [B, S], at least fp32,
  // the same on all ranks.
  [[nodiscard]] virtual at::Tensor cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights,
                                                 const at::Tensor& labels, const HeadLoss& loss) const = 0;
  // Collective. hidden_states [B, S / W, H] -> [B, S, V] on all ranks.
  [[nodiscard]] virtual at::Tensor logits(const at::Tensor& hidden_states, const HeadWeights& weights) const = 0;
};
using VocabularyContextPtr = std::shared_ptr<const VocabularyContext>;

// This rank holds all rows of the weights; inputs may have any leading dims.
class LocalVocabularyContext final : public VocabularyContext {
 public:
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights,
                                         const at::Tensor& labels, const HeadLoss& loss) const override;
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden_states, const HeadWeights& weights) const override;
};

}  // namespace d9d
