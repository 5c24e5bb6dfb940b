// Class scores of pooled positions: dropout, then a projection without bias.
#pragma once

#include "d9d/blocks/head/head_config.h"
#include "d9d/blocks/head/pooled_rows.h"
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
class ClassificationHead : public Module {
 public:
  using Shared = PoolingShared;
  using Output = ClassificationOutput;

  ClassificationHead(const ClassificationHeadConfig& config, std::int64_t hidden_size);
  // hidden_states [B, S, H]; under tensor parallelism they are shards of the sequence, [B, S / W, H], while the mask
  // and the output cover all of it. Each rank then computes all selected positions, and uses those of its shard.
  [[nodiscard]] ClassificationOutput forward(const at::Tensor& hidden_states, const PoolingShared& shared) const;

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;

  const ModulePtr<Dropout> dropout;
  const ModulePtr<Linear> score;

 private:
  DeviceMesh shards_;
};

}  // namespace d9d
