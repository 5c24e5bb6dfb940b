// The attention core of a layer: a backend that was chosen when the layer was built, and sinks if it has them.
#pragma once

#include <optional>

#include "d9d/kernels/attention/resolve_sdpa.h"
#include "d9d/modules/base/module.h"
#include "d9d/modules/blocks/attention/attention_context.h"
#include "d9d/modules/blocks/attention/sdpa_config.h"

namespace d9d {

struct SdpaParameters {
  std::optional<std::int64_t> num_sinks;     // one learned sink a query head
  std::optional<std::int64_t> window_left;   // earlier keys that a query sees, beside itself
  std::optional<std::int64_t> window_right;  // later keys
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
  const kernels::SdpaChoice choice;
  const ParameterPtr sinks;  // null without

 private:
  [[nodiscard]] at::Tensor run_core(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const;

  AttentionContextPtr context_ = std::make_shared<LocalAttentionContext>();
};

}  // namespace d9d
