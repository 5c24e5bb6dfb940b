// The attention core of a layer: the preferred kernel, the window and softcap, and the sinks if it has any. Each call
// chooses its kernel from the device and dtype of the query.
#pragma once

#include <optional>
#include <utility>

#include "d9d/blocks/attention/attention_context.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"
#include "d9d/modules/module.h"

namespace d9d {

struct SdpaParameters {
  std::optional<std::int64_t> num_sinks;     // one learned sink per query head
  std::optional<std::int64_t> window_left;   // number of earlier keys that a query sees, besides its own
  std::optional<std::int64_t> window_right;  // number of later keys
  std::optional<double> softcap;             // bound of the logits, see SdpaOptions
  bool needs_attention_mask = false;         // forward will get a mask
  std::optional<SdpaConfig> backend;         // none: D9D_BACKEND_AUTO_SDPA (an SdpaConfig as JSON), else the best
};

// State: sinks [num_sinks] if there are sinks, initially zeros.
class Sdpa : public Module {
 public:
  // Throws ConfigError if the chosen backend does not support the parameters.
  explicit Sdpa(const SdpaParameters& parameters);

  // inputs.sinks must be empty, because this module has its own. Shapes: kernels/attention/sdpa.h.
  [[nodiscard]] at::Tensor forward(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const;

  // Replaces the local context (context parallelism, a cache), and returns the former one.
  AttentionContextPtr set_attention_context(AttentionContextPtr context) {
    return std::exchange(context_, std::move(context));
  }

  const SdpaParameters parameters;
  const kernels::SdpaPreferences preferences;
  const ParameterPtr sinks;  // null without sinks

 private:
  AttentionContextPtr context_ = std::make_shared<LocalAttentionContext>();
};

}  // namespace d9d
