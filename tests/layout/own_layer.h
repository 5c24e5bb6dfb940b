// A layer as a user would write one, with features that the families lack: a shared expert, dropout, a branch that some
// steps leave out, a factor from state that changes with every call, a parameter and a buffer of its own.
#pragma once

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/models/decoder/pre_norm_decoder.h"

#include "tests/layout/layout_job.h"
#include "tests/support/decoder_families.h"

namespace d9d::test {

class OwnLayer : public DecoderLayer {
 public:
  OwnLayer(const OwnLayers& own, const SmallDecoder& sizes);
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states, const LayerContext& context) const override;
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  // `number`: within the step.
  void begin_microbatch(std::int64_t step, std::int64_t number) {
    num_calls_ = 0;
    uses_branch_ = step % 2 == 0 && number % 2 == 0;
  }

  // Those with other positions, over which the buffer sums.
  void set_ranks(const DeviceMesh& ranks) { ranks_ = ranks; }

  const OwnLayers own;
  const ModulePtr<RMSNorm> input_layernorm;
  const ModulePtr<GroupedQueryAttention> self_attn;
  const ModulePtr<RMSNorm> post_attention_layernorm;
  const ModulePtr<SwiGLU> mlp;        // null with experts
  const ModulePtr<MoELayer> experts;  // null without
  const ModulePtr<Dropout> dropout;
  const ModulePtr<Linear> branch;  // null without
  const ParameterPtr scale;        // [H]
  const BufferPtr seen;            // [H], null without

 protected:
  void on_step_finished(StepOutcome outcome) override;

 private:
  mutable int num_calls_ = 0;  // in this microbatch
  bool uses_branch_ = true;    // as well
  DeviceMesh ranks_;
  mutable at::Tensor seen_in_step_;  // [H], of this rank
};

[[nodiscard]] ModulePtr<PreNormDecoder> make_own_decoder(const OwnLayers& own, const SmallDecoder& sizes,
                                                         const DecoderStageOptions& options);

}  // namespace d9d::test
