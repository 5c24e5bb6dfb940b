// Class scores of pooled positions: dropout, then a projection without bias.
#pragma once

#include "d9d/blocks/head/head_config.h"
#include "d9d/blocks/head/pooled_head.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/regularization/dropout.h"

namespace d9d {

struct ClassificationOutput {
  at::Tensor scores;  // [n, num_labels], at least fp32; [B, S, num_labels] without a pooling mask
  static constexpr auto fields() {
    return record<ClassificationOutput>(field("scores", &ClassificationOutput::scores));
  }
};

// State: score.weight [num_labels, H].
class ClassificationHead : public PooledHead {
 public:
  using Shared = PoolingShared;
  using Output = ClassificationOutput;

  ClassificationHead(const ClassificationHeadConfig& config, std::int64_t hidden_size);
  // hidden_states [B, S, H]; those of this rank, where ranks share sequences, while the mask and the output cover all.
  [[nodiscard]] ClassificationOutput forward(const at::Tensor& hidden_states, const PoolingShared& shared) const;

  const ModulePtr<Dropout> dropout;
  const ModulePtr<Linear> score;
};

}  // namespace d9d
