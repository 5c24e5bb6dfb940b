#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/kernels/attention/fused_kernels.h"
#include "d9d/kernels/attention/sdpa.h"
#include "d9d/kernels/common/first_order.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Attention of tensors without values. Saves for backward what every fused kernel saves, on a CPU and on a GPU: query,
// key, value, the result and its logsumexp, and no logits.
struct MetaAttention : torch::autograd::Function<MetaAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) {
    const auto kept = kept_result([&] {
      const at::TensorOptions in_float = query.options().dtype(at::kFloat);
      return variable_list{at::empty(query.sizes(), query.options()),
                           at::empty({query.size(0), query.size(2), query.size(1)}, in_float)};
    });
    context->save_for_backward({query, key, value, kept[0], kept[1]});
    return kept[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    detail::check_first_order("meta_attention");
    const variable_list saved = context->get_saved_variables();
    variable_list gradients;
    for (std::size_t i = 0; i < 3; ++i) gradients.push_back(at::empty(saved[i].sizes(), saved[i].options()));
    return gradients;
  }
};

// The arguments of LibTorch's operators: heads come before positions, and there is at most one mask.
struct TorchSdpaCall {
  at::Tensor query, key, value;    // [B, H, S, D]
  std::optional<at::Tensor> mask;  // additive or boolean, never with is_causal
  bool is_causal;
  double scale;
  bool has_grouped_heads;
};

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor hide(const at::Tensor& mask, const at::Tensor& hidden) {
  return mask.scalar_type() == at::kBool ? mask.logical_and(hidden.logical_not())
                                         : mask.masked_fill(hidden, kMinusInfinity);
}

// The number of leading keys that some query may see: with causality, keys after the last query are cut off.
std::int64_t num_visible_keys(const SdpaInputs& inputs, const SdpaOptions& options) {
  const std::int64_t num_keys = inputs.key.size(1);
  if (!options.causal || inputs.mask) return num_keys;
  return std::min(num_keys, options.first_query + inputs.query.size(1));
}

TorchSdpaCall make_call(const SdpaInputs& inputs, const SdpaOptions& options) {
  const std::int64_t num_keys = num_visible_keys(inputs, options);
  const auto visible = [&](const at::Tensor& keys) {
    return keys.size(1) == num_keys ? keys : keys.narrow(1, 0, num_keys);
  };
  TorchSdpaCall call{.query = inputs.query.transpose(1, 2),
                     .key = visible(inputs.key).transpose(1, 2),
                     .value = visible(inputs.value).transpose(1, 2),
                     .mask = std::nullopt,
                     .is_causal = options.causal,
                     .scale = detail::logit_scale(inputs, options),
                     .has_grouped_heads = inputs.query.size(2) != inputs.key.size(2)};
  if (inputs.mask) {
    auto mask = inputs.mask->detach();
    if (mask.scalar_type() != at::kBool) mask = mask.to(inputs.query.scalar_type());
    if (options.causal) mask = hide(mask, detail::hidden_by_position(inputs, options));
    while (mask.dim() < 4) mask = mask.unsqueeze(0);  // only kMath takes masks of three dims
    call.mask = mask;
    call.is_causal = false;
  } else if (options.causal && inputs.query.size(1) == 1) {
    call.is_causal = false;                                // what a single query does not see is cut off
  } else if (options.causal && options.first_query > 0) {  // LibTorch's own causality counts queries from 0
    call.mask = detail::hidden_by_position(inputs, options).narrow(1, 0, num_keys).logical_not();
    while (call.mask->dim() < 4) call.mask = call.mask->unsqueeze(0);
    call.is_causal = false;
  }
  return call;
}

// The reason why a kernel cannot compute the call; null if it can.
const char* refusal(TorchSdpaKernel kernel, const TorchSdpaCall& call) {
  const bool is_half = call.query.scalar_type() == at::kBFloat16 || call.query.scalar_type() == at::kHalf;
  if (kernel == TorchSdpaKernel::kMath || (kernel == TorchSdpaKernel::kFlash && call.query.is_cpu())) return nullptr;
  if (!call.query.is_cuda()) return "needs a GPU";
  if (call.query.size(3) % 8 != 0) return "needs head features in a multiple of 8";
  if (kernel == TorchSdpaKernel::kEfficient) {
    return call.query.scalar_type() == at::kDouble ? "has no double" : nullptr;
  }
  if (!is_half) return "needs bf16 or half";
  if (kernel == TorchSdpaKernel::kFlash && call.mask) return "takes no mask";
  if (kernel == TorchSdpaKernel::kCudnn && call.query.size(2) == 1 && call.key.size(2) == 1) {
    return "takes no single query with a single key";
  }
  const std::int64_t most_features = kernel == TorchSdpaKernel::kFlash ? 256 : 128;
  return call.query.size(3) > most_features ? "has too many features a head" : nullptr;
}

std::optional<at::Tensor> additive_mask(const TorchSdpaCall& call) {
  if (!call.mask || call.mask->scalar_type() != at::kBool) return call.mask;
  return at::zeros_like(*call.mask, call.query.options()).masked_fill_(call.mask->logical_not(), kMinusInfinity);
}

// The additive mask expanded to [B, H, S, Skv], as the operators of the single kernels require.
std::optional<at::Tensor> expanded_mask(const TorchSdpaCall& call) {
  const auto mask = additive_mask(call);
  if (!mask) return mask;
  return mask->expand({call.query.size(0), call.query.size(1), call.query.size(2), call.key.size(2)});
}

// Lets LibTorch choose the kernel. On a GPU LibTorch would convert a boolean mask to an additive one of finite numbers,
// and a query that sees nothing would get the mean of all values; so the mask is converted before, with -inf.
at::Tensor run_any(const TorchSdpaCall& call) {
  return at::scaled_dot_product_attention(call.query, call.key, call.value,
                                          call.query.is_cuda() ? additive_mask(call) : call.mask, 0.0, call.is_causal,
                                          call.scale, call.has_grouped_heads);
}

at::Tensor run(TorchSdpaKernel kernel, const TorchSdpaCall& call) {
  const auto &q = call.query, &k = call.key, &v = call.value;
  const bool needs_grad = c10::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const auto repeated = [&](const at::Tensor& heads) { return heads.repeat_interleave(q.size(1) / k.size(1), 1); };
  switch (kernel) {
    case TorchSdpaKernel::kMath:
      return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, expanded_mask(call), 0.0, call.is_causal,
                                                                std::nullopt, call.scale, call.has_grouped_heads));
    case TorchSdpaKernel::kFlash:
      if (q.is_cpu()) {
        return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, call.is_causal,
                                                                           expanded_mask(call), call.scale));
      }
      return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, 0.0, call.is_causal,
                                                                 /*return_debug_mask=*/false, call.scale));
    case TorchSdpaKernel::kEfficient:
      return std::get<0>(at::_scaled_dot_product_efficient_attention(q, repeated(k), repeated(v), expanded_mask(call),
                                                                     needs_grad, 0.0, call.is_causal, call.scale));
    case TorchSdpaKernel::kCudnn:
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
          q, k, v, expanded_mask(call), needs_grad, 0.0, call.is_causal, /*return_debug_mask=*/false, call.scale));
  }
  throw InternalError("[kernels::torch_attention] unknown kernel");
}

TorchSdpaKernel first_that_takes(const TorchSdpaCall& call, const std::vector<TorchSdpaKernel>& kernels) {
  std::string reasons;
  for (const auto kernel : kernels) {
    const auto* reason = refusal(kernel, call);
    if (!reason) return kernel;
    reasons += cat(reasons.empty() ? "" : "; ", enum_name(kernel), " ", reason);
  }
  throw ConfigError(cat("[kernels::torch_attention] expected a kernel that takes these inputs, got: ", reasons,
                        ". Allow MATH, or leave the list empty."));
}

}  // namespace

at::Tensor torch_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                           const std::vector<TorchSdpaKernel>& kernels) {
  detail::check_sdpa_shapes("torch_attention", inputs);
  D9D_CHECK(!inputs.sinks, ConfigError,
            "[kernels::torch_attention] expected no learnable sinks, got some. Use eager_attention.");
  D9D_CHECK(!options.window_left && !options.window_right && !options.softcap, ConfigError,
            "[kernels::torch_attention] expected no sliding window and no softcap, got ",
            options.softcap ? "softcap" : "a window", ". Use eager_attention.");
  if (inputs.query.is_meta()) return MetaAttention::apply(inputs.query, inputs.key, inputs.value);
  if (inputs.packed) {
    D9D_CHECK(inputs.query.is_cpu(), ConfigError,
              "[kernels::torch_attention] expected no packed sequences on a GPU, got some. Use fused_attention.");
    const auto core = [&](const SdpaInputs& sequence, const SdpaOptions& how) {
      return SdpaOutput{.out = torch_attention(sequence, how, kernels), .logsumexp = {}};
    };
    return detail::each_sequence(core, inputs, options).out;
  }
  D9D_CHECK(
      inputs.query.is_cpu() || std::max(inputs.query.numel(), inputs.key.numel()) < detail::kMaxElements, ConfigError,
      "[kernels::torch_attention] expected tensors of fewer than 2^31 elements, which LibTorch's kernels index, got "
      "query ",
      inputs.query.sizes(), " and key ", inputs.key.sizes(),
      ". Use bf16 and no backend, or more context-parallel ranks.");
  const auto call = make_call(inputs, options);
  const bool is_free = kernels.empty() || call.query.numel() == 0 || call.key.numel() == 0;
  const auto out = is_free ? run_any(call) : run(first_that_takes(call, kernels), call);
  return out.transpose(1, 2).contiguous();
}

}  // namespace d9d::kernels
