// One layer of a decoder: the interface that a family's layers implement.
//
// Legend   B batch, S sequence, H hidden size.
#pragma once

#include <optional>

#include "d9d/blocks/positional/rotary_embedding.h"
#include "d9d/models/decoder/sequence.h"
#include "d9d/modules/module.h"

namespace d9d {

// What all layers of a stage get beside their hidden states. A new input of layers is a member here.
struct LayerContext {
  RotaryTables tables;
  SequenceShared shared;  // packed is for attention, real_positions for experts: those of hidden_states
  static constexpr auto fields() {
    return record<LayerContext>(field("tables", &LayerContext::tables), field("shared", &LayerContext::shared));
  }
};

struct DecoderLayerOutput {
  at::Tensor hidden_states;                  // [B, S, H]
  std::optional<at::Tensor> auxiliary_loss;  // scalar
  static constexpr auto fields() {
    return record<DecoderLayerOutput>(field("hidden_states", &DecoderLayerOutput::hidden_states),
                                      field("auxiliary_loss", &DecoderLayerOutput::auxiliary_loss));
  }
};

class DecoderLayer : public Module {
 public:
  // hidden_states [B, S, H]; under tensor parallelism a shard of the positions, while the context, but for
  // real_positions, covers all of them.
  [[nodiscard]] virtual DecoderLayerOutput forward(const at::Tensor& hidden_states,
                                                   const LayerContext& context) const = 0;
  // Whether a cache of keys and values serves the layer in generation: positions meet in Sdpa alone. A layer that mixes
  // them in another way, too, such as by a convolution, returns false; generate() then gives it whole sequences.
  [[nodiscard]] virtual bool is_cacheable() const { return true; }

  [[nodiscard]] std::vector<ActivationPlan> activation_plans() const override;
  void set_activation_plan(const ActivationPlan& plan) override;

 protected:
  // What follows attention, a child that can be recomputed alone; null if there is none.
  [[nodiscard]] virtual std::shared_ptr<Module> feed_forward() const { return nullptr; }
};

}  // namespace d9d
