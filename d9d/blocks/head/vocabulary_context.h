// How a language-modelling head gets access to its vocabulary. In the local form this rank holds all of it; tensor
// parallelism installs another form.
//
// Legend   B batch, S positions, H hidden size, V vocabulary, W ranks (1 in the local form)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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

class VocabularyContext {
 public:
  virtual ~VocabularyContext() = default;
  // Collective. hidden_states [B, S / W, H]; weights: those of the head, in the order of the vocabulary; labels [B, S]
  // int64, global ids or kIgnoreIndex -> [B, S], at least fp32, the same on all ranks.
  [[nodiscard]] virtual at::Tensor cross_entropy(const at::Tensor& hidden_states,
                                                 const std::vector<ParameterPtr>& weights, const at::Tensor& labels,
                                                 const HeadLoss& loss) const = 0;
  // Collective. hidden_states [B, S / W, H] -> [B, S, V] on all ranks.
  [[nodiscard]] virtual at::Tensor logits(const at::Tensor& hidden_states,
                                          const std::vector<ParameterPtr>& weights) const = 0;
};
using VocabularyContextPtr = std::shared_ptr<const VocabularyContext>;

// This rank holds all rows of the weights; inputs may have any leading dims.
class LocalVocabularyContext final : public VocabularyContext {
 public:
  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& hidden_states, const std::vector<ParameterPtr>& weights,
                                         const at::Tensor& labels, const HeadLoss& loss) const override;
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden_states,
                                  const std::vector<ParameterPtr>& weights) const override;
};

}  // namespace d9d
