// The attention core of a layer: which kernel is preferred, the window and softcap, and sinks if it has them. Which
// kernel runs is decided by each call, from the device and dtype of the query.
#pragma once

#include <optional>

#include "d9d/blocks/attention/attention_context.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"
#include "d9d/modules/module.h"

namespace d9d {

struct SdpaParameters {
  std::optional<std::int64_t> num_sinks;     // one learned sink a query head
  std::optional<std::int64_t> window_left;   // earlier keys that a query sees, beside itself
  std::optional<std::int64_t> window_right;  // later keys
  std::optional<double> softcap;             // bound of the logits, see SdpaOptions
  bool needs_attention_mask = false;         // forward will be given a mask
  std::optional<SdpaConfig> backend;         // none: D9D_BACKEND_AUTO_SDPA (JSON of one), else the best that fits
};

// State: sinks [num_sinks] if asked for, from zeros.
class Sdpa : public Module {
 public:
  // Throws ConfigError if the chosen backend cannot do what is asked for.
  explicit Sdpa(const SdpaParameters& parameters);

  // inputs.sinks stays empty: they are this module's. Shapes in kernels/attention/sdpa.h.
  [[nodiscard]] at::Tensor forward(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const;

  // Puts another context in the place of the local one (context parallelism).
  void set_attention_context(AttentionContextPtr context) { context_ = std::move(context); }

  const SdpaParameters parameters;
  const kernels::SdpaPreferences preferences;
  const ParameterPtr sinks;  // null without

 private:
  AttentionContextPtr context_ = std::make_shared<LocalAttentionContext>();
};

}  // namespace d9d
