#include "d9d/modules/blocks/attention/sdpa.h"

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
  throw InternalError("[modules::sdpa] unknown kernel");
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

kernels::SdpaChoice choose(const SdpaParameters& parameters) {
  kernels::SdpaRequest request{.needs = {.mask = parameters.needs_attention_mask,
                                         .sinks = parameters.num_sinks.has_value(),
                                         .window = parameters.window_left || parameters.window_right}};
  if (parameters.backend) request.configured = std::visit(ToSelection{}, *parameters.backend);
  if (const auto text = environment_variable("D9D_BACKEND_AUTO_SDPA")) {
    request.environment = std::visit(
        ToSelection{},
        parse_record<SdpaConfig>(parse_json_text(*text, "D9D_BACKEND_AUTO_SDPA"), {.source = "D9D_BACKEND_AUTO_SDPA"}));
  }
  return kernels::resolve_sdpa(request);
}

}  // namespace

Sdpa::Sdpa(const SdpaParameters& sdpa_parameters)
    : parameters(sdpa_parameters),
      choice(choose(parameters)),
      sinks(parameters.num_sinks
                ? register_parameter("sinks", {.shape = {*parameters.num_sinks}, .init = init::zeros()})
                : nullptr) {}

at::Tensor Sdpa::forward(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const {
  kernels::SdpaInputs all_inputs = inputs;
  if (sinks) all_inputs.sinks = sinks->local();
  kernels::SdpaOptions all_options = options;
  all_options.window_left = parameters.window_left;
  all_options.window_right = parameters.window_right;
  return context_->attend([this](const auto& here, const auto& how) { return run_core(here, how); }, all_inputs,
                          all_options);
}

at::Tensor Sdpa::run_core(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options) const {
  if (choice.backend == kernels::SdpaBackend::kEager) return kernels::eager_attention(inputs, options);
  return kernels::torch_attention(inputs, options, choice.kernels);
}

}  // namespace d9d
