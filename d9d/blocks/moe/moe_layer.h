// A dropless mixture of experts: router, dispatch, experts, combine, optional shared expert, and load balancing.
//
// Example
//   auto moe = make_module<MoELayer>(
//       MoELayerConfig{.hidden_size = 1024, .intermediate_size = 512, .num_experts = 64, .top_k = 8});
//   const MoEOutput output = moe(hidden_states);      // [B, S, H] -> [B, S, H]
//   ...                                               // backward, optimiser step
//   model->finish_step(StepOutcome::kUpdated);        // balances experts by the step's counts, then resets the counts
#pragma once

#include <memory>
#include <optional>

#include "d9d/blocks/moe/grouped_swiglu.h"
#include "d9d/blocks/moe/router.h"
#include "d9d/blocks/moe/shared_swiglu.h"
#include "d9d/blocks/moe/token_dispatcher.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

struct MoELayerConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of one expert
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  bool renormalize_probabilities = true;
  std::optional<SharedExpertParameters> shared_expert;
  std::optional<GroupedMMConfig> grouped_mm_backend;
  double auxiliary_loss_coefficient = 0.0;  // of the load-balancing loss; 0: the loss is not computed
  double expert_bias_update_rate = 0.0;     // of loss-free balancing; 0: the router has no bias
};

struct MoEOutput {
  at::Tensor hidden_states;                  // as the input
  std::optional<at::Tensor> auxiliary_loss;  // scalar, coefficient applied; to be added to the loss
  static constexpr auto fields() {
    return record<MoEOutput>(field("hidden_states", &MoEOutput::hidden_states),
                             field("auxiliary_loss", &MoEOutput::auxiliary_loss));
  }
};

// Children: router, grouped_experts, shared_expert. Buffer tokens_per_expert [E] int64, not in the state dict: the
// number of tokens that chose each (global) expert in this step. Only a forward of training with gradients counts them;
// activation checkpointing does not count them twice.
class MoELayer : public Module {
 public:
  explicit MoELayer(const MoELayerConfig& config);

  // hidden_states [..., H]; under tensor parallelism a shard of the sequence, [B, S / W, H]. real_positions [n] int64:
  // the flat indices of its positions that are data (SequenceShared); none: all. The others are not routed, not
  // counted, and zero in the result. The auxiliary loss covers all positions of this microbatch that are data: ranks
  // that share its positions get the same value. Its gradient is that of the sum of the uses of it by ranks of context
  // parallelism, whatever weights their losses have; ranks of tensor parallelism have one loss, which uses it once.
  // Collective over all these ranks, in forward and backward, if the coefficient is positive.
  [[nodiscard]] MoEOutput forward(const at::Tensor& hidden_states,
                                  const std::optional<at::Tensor>& real_positions = std::nullopt) const;

  // Those of the experts that a token chooses.
  [[nodiscard]] double training_flops(std::int64_t num_positions) const override;

  // All tokens of a rank are whole and need no other rank but for their experts. Experts that are placed already, by
  // expert parallelism, are not part of it.
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override { shards_ = context->ranks(); }

  // The ranks whose tokens are counted together for load balancing. Default: this rank only.
  struct CountRanks {
    DeviceMesh of_tokens = {};     // all ranks with other tokens
    DeviceMesh of_positions = {};  // those among them with other positions of the same microbatch, and another loss
  };
  void set_count_ranks(CountRanks ranks) { ranks_ = std::move(ranks); }

  // Replaces the local dispatcher (expert parallelism).
  void set_token_dispatcher(std::unique_ptr<TokenDispatcher> dispatcher) { dispatcher_ = std::move(dispatcher); }

  const MoELayerConfig config;
  const ModulePtr<TopKRouter> router;
  const ModulePtr<GroupedSwiGLU> grouped_experts;
  const ModulePtr<SharedSwiGLU> shared_expert;  // null without a shared expert
  const BufferPtr tokens_per_expert;

 protected:
  // Adjusts the router's bias towards balance if there is an update rate and the step was not skipped, then resets the
  // counts. Collective over the ranks of tokens, if it adjusts the bias.
  void on_step_finished(StepOutcome outcome) override;
  // tokens_per_expert [E]: the number of tokens of the step that chose each expert. expert_load_max: the maximum of
  // these divided by their mean; 1 is perfect balance. Collective over the ranks of tokens, with one operation.
  [[nodiscard]] std::map<std::string, at::Tensor> own_step_statistics() const override;

 private:
  void count_tokens(const at::Tensor& expert_ids) const;
  [[nodiscard]] at::Tensor balance_loss(const RoutedTokens& routed) const;
  [[nodiscard]] at::Tensor step_counts() const;

  std::unique_ptr<TokenDispatcher> dispatcher_;
  CountRanks ranks_;
  DeviceMesh shards_;  // tensor parallelism: the ranks with other positions of the same microbatch, and the same loss
};

}  // namespace d9d
