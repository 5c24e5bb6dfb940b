#include "d9d/blocks/attention/sdpa.h"

#include "d9d/base/check.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/environment.h"

namespace d9d {
namespace {

kernels::TorchSdpaKernel to_kernel(TorchSdpaKernel kernel) {
  switch (kernel) {
    case TorchSdpaKernel::kMath:
      return kernels::TorchSdpaKernel::kMath;
    case TorchSdpaKernel::kFlashAttention:
      return kernels::TorchSdpaKernel::kFlash;
    case TorchSdpaKernel::kEfficientAttention:
      return kernels::TorchSdpaKernel::kEfficient;
    case TorchSdpaKernel::kCudnnAttention:
      return kernels::TorchSdpaKernel::kCudnn;
  }
  throw InternalError("[blocks::sdpa] unknown kernel");
}

struct ToSelection {
  kernels::SdpaSelection operator()(const TorchSdpaConfig& config) const {
    kernels::SdpaSelection selection{.kind = kernels::SdpaKind::kTorch};
    if (config.backends) {
      for (const TorchSdpaKernel kernel : *config.backends) selection.kernels.push_back(to_kernel(kernel));
    }
    return selection;
  }
  kernels::SdpaSelection operator()(const EagerSdpaConfig&) const { return {.kind = kernels::SdpaKind::kEager}; }
  kernels::SdpaSelection operator()(const FlashAttention2SdpaConfig&) const {
    return {.kind = kernels::SdpaKind::kFlashAttention2};
  }
  kernels::SdpaSelection operator()(const FlashAttention4SdpaConfig&) const {
    return {.kind = kernels::SdpaKind::kFlashAttention4};
  }
};

kernels::SdpaWishes wishes_of(const SdpaParameters& parameters) {
  kernels::SdpaWishes wishes;
  if (parameters.backend) wishes.configured = std::visit(ToSelection{}, *parameters.backend);
  if (const auto text = environment_variable("D9D_BACKEND_AUTO_SDPA")) {
    wishes.environment = std::visit(
        ToSelection{},
        parse_record<SdpaConfig>(parse_json_text(*text, "D9D_BACKEND_AUTO_SDPA"), {.source = "D9D_BACKEND_AUTO_SDPA"}));
  }
  return wishes;
}

// On any device: what a wish refuses, it refuses everywhere.
kernels::SdpaWishes checked(const kernels::SdpaWishes& wishes, const SdpaParameters& parameters) {
  (void)kernels::resolve_sdpa({.needs = {.mask = parameters.needs_attention_mask,
                                         .sinks = parameters.num_sinks.has_value(),
                                         .window = parameters.window_left || parameters.window_right,
                                         .softcap = parameters.softcap.has_value()},
                               .configured = wishes.configured,
                               .environment = wishes.environment});
  return wishes;
}

}  // namespace

Sdpa::Sdpa(const SdpaParameters& sdpa_parameters)
    : parameters(sdpa_parameters),
      wishes(checked(wishes_of(parameters), parameters)),
      sinks(parameters.num_sinks
                ? register_parameter("sinks", {.shape = {*parameters.num_sinks}, .init = init::zeros()})
                : nullptr) {}

at::Tensor Sdpa::forward(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const {
  kernels::SdpaInputs all_inputs = inputs;
  if (sinks) all_inputs.sinks = sinks->local();
  kernels::SdpaOptions all_options = options;
  all_options.window_left = parameters.window_left;
  all_options.window_right = parameters.window_right;
  all_options.softcap = parameters.softcap;
  return context_->attend(
      [this](const auto& here, const auto& how) { return kernels::scaled_dot_product_attention(here, how, wishes); },
      all_inputs, all_options);
}

}  // namespace d9d
