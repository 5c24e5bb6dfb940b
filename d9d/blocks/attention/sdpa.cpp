#include "d9d/blocks/attention/sdpa.h"

#include "d9d/base/config/environment_record.h"

namespace d9d {
namespace {

kernels::SdpaPreferences preferences_of(const SdpaParameters& parameters) {
  kernels::SdpaPreferences preferences{.configured = parameters.backend,
                                       .environment = environment_record<SdpaConfig>("D9D_BACKEND_AUTO_SDPA")};
  // Resolves without a device: a preference that the kernels cannot satisfy is refused wherever the layer is built.
  (void)kernels::resolve_sdpa({.needs = {.mask = parameters.needs_attention_mask,
                                         .sinks = parameters.num_sinks.has_value(),
                                         .window = parameters.window_left || parameters.window_right,
                                         .softcap = parameters.softcap.has_value()},
                               .preferences = preferences});
  return preferences;
}

}  // namespace

Sdpa::Sdpa(const SdpaParameters& sdpa_parameters)
    : parameters(sdpa_parameters),
      preferences(preferences_of(parameters)),
      sinks(parameters.num_sinks ? register_parameter("sinks", {.shape = {*parameters.num_sinks},
                                                                .init = init::zeros(),
                                                                .role = ParameterRole::kVector})
                                 : nullptr) {}

at::Tensor Sdpa::forward(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const {
  kernels::SdpaInputs all_inputs = inputs;
  if (sinks) all_inputs.sinks = sinks->local();
  kernels::SdpaOptions all_options = options;
  all_options.window_left = parameters.window_left;
  all_options.window_right = parameters.window_right;
  all_options.softcap = parameters.softcap;
  return context_->attend(all_inputs, all_options, preferences);
}

}  // namespace d9d
