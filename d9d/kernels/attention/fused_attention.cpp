#include <algorithm>

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

using detail::readable;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void save_call(AutogradContext* context, const detail::FusedCall& call) {
  context->saved_data["scale"] = call.scale;
  context->saved_data["softcap"] = call.softcap;
  context->saved_data["left"] = call.left;
  context->saved_data["right"] = call.right;
  context->saved_data["max_length"] = call.max_length;
  context->saved_data["max_key_length"] = call.max_key_length;
}

detail::FusedCall saved_call(AutogradContext* context) {
  return {.scale = context->saved_data["scale"].toDouble(),
          .softcap = context->saved_data["softcap"].toOptional<double>(),
          .left = context->saved_data["left"].toOptional<std::int64_t>(),
          .right = context->saved_data["right"].toOptional<std::int64_t>(),
          .max_length = context->saved_data["max_length"].toInt(),
          .max_key_length = context->saved_data["max_key_length"].toInt()};
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::optional<at::Tensor>& sinks,
                               const std::optional<at::Tensor>& cu_seqlens,
                               const std::optional<at::Tensor>& key_cu_seqlens, const detail::FusedCall& call,
                               FusedSdpaKernel kernel) {
    const detail::FusedTensors tensors{.query = query,
                                       .key = key,
                                       .value = value,
                                       .cu_seqlens = cu_seqlens.value_or(at::Tensor()),
                                       .key_cu_seqlens = key_cu_seqlens.value_or(at::Tensor())};
    const bool trains = query.requires_grad() || key.requires_grad() || value.requires_grad();
    const auto kept = kept_result([&] {
      const auto result = detail::fused_forward(tensors, sinks.value_or(at::Tensor()), call, kernel, trains);
      return variable_list{result.out, result.logsumexp};
    });
    const detail::FusedForward result{.out = kept[0], .logsumexp = kept[1]};
    context->save_for_backward({query, key, value, sinks.value_or(at::Tensor()), tensors.cu_seqlens,
                                tensors.key_cu_seqlens, result.out, result.logsumexp});
    save_call(context, call);
    context->saved_data["kernel"] = static_cast<std::int64_t>(kernel);
    context->set_materialize_grads(false);
    return {result.out, result.logsumexp};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("attention");
    variable_list result(8);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const auto saved = context->get_saved_variables();
    const detail::FusedTensors tensors{
        .query = saved[0], .key = saved[1], .value = saved[2], .cu_seqlens = saved[4], .key_cu_seqlens = saved[5]};
    const detail::FusedForward forward{.out = saved[6], .logsumexp = saved[7]};
    const at::Tensor grad_out = grads[0].defined() ? readable(grads[0]) : at::zeros_like(forward.out);
    if (context->needs_input_grad(0) || context->needs_input_grad(1) || context->needs_input_grad(2)) {
      const auto kernel = static_cast<FusedSdpaKernel>(context->saved_data["kernel"].toInt());
      const auto gradients = detail::fused_backward(grad_out, grads[1], tensors, forward, saved_call(context), kernel);
      result[0] = gradients.query;
      result[1] = gradients.key;
      result[2] = gradients.value;
    }
    if (saved[3].defined() && context->needs_input_grad(3)) {
      result[3] = detail::sink_gradient(grad_out, grads[1], forward, saved[3]);
    }
    return result;
  }
};

// The range of keys that some query sees, and the band within it that query i sees (fused_kernels.h).
struct Band {
  std::int64_t first_key = 0;
  std::int64_t num_keys = 0;
  std::optional<std::int64_t> left;
  std::optional<std::int64_t> right;
};

// nullopt if some query sees no key, because the kernels differ in what they return for such a query.
std::optional<Band> band_of(const SdpaInputs& inputs, const SdpaOptions& options) {
  const std::int64_t num_queries = inputs.query.size(1), num_keys = inputs.key.size(1);
  auto left = options.window_left, right = options.window_right;
  if (options.causal) right = std::min<std::int64_t>(right.value_or(0), 0);
  const std::int64_t first = left ? std::max<std::int64_t>(0, options.first_query - *left) : 0;
  const std::int64_t end = right ? std::min(num_keys, options.first_query + num_queries + *right) : num_keys;
  const std::int64_t behind = end - (options.first_query + num_queries);  // last key's position minus last query's
  if (end <= first || (left && *left + behind < 0) || (right && options.first_query + *right < first)) {
    return std::nullopt;
  }
  Band band{.first_key = first, .num_keys = end - first};
  if (left) band.left = *left + behind;
  if (right) band.right = *right - behind;
  if (band.left && *band.left >= band.num_keys - 1) band.left = std::nullopt;
  if (band.right && *band.right >= num_queries) band.right = std::nullopt;
  return band;
}

// With packed_keys and a bound each query sees its own key, the last one that it may see, so that none sees nothing.
Band band_of_packed_keys(const SdpaInputs& inputs, const SdpaOptions& options) {
  Band band{.num_keys = inputs.key.size(1), .left = options.window_left, .right = options.window_right};
  if (options.causal) band.right = std::min<std::int64_t>(band.right.value_or(0), 0);
  if (band.left && *band.left >= inputs.packed_keys->max_length) band.left = std::nullopt;
  if (band.right && *band.right >= inputs.packed->max_length) band.right = std::nullopt;
  return band;
}

// Attention to keys that do not fill their room, which only FlashAttention-2 takes.
SdpaOutput attend_to_rooms(const detail::FusedTensors& tensors, detail::FusedCall call,
                           const std::optional<at::Tensor>& sinks) {
  const bool trains = tensors.query.requires_grad() || tensors.key.requires_grad() || tensors.value.requires_grad();
  D9D_CHECK(!call.softcap && !(trains && c10::GradMode::is_enabled()), ConfigError,
            "[kernels::fused_attention] expected no ", call.softcap ? "softcap" : "gradients",
            " with the lengths of packed_keys, got some. Let the keys fill their rooms, or use eager_attention.");
  if (call.max_length == 1) call.right = std::nullopt;  // no key is later; so the kernel may share out the keys
  const auto result = detail::fused_forward(tensors, sinks.value_or(at::Tensor()), call, FusedSdpaKernel::kFlash,
                                            /*backward_follows=*/false);
  return {.out = result.out, .logsumexp = result.logsumexp};
}

}  // namespace

std::optional<detail::FusedProblem> detail::fused_problem(const SdpaInputs& inputs, const SdpaOptions& options) {
  D9D_CHECK(!inputs.packed || options.first_query == 0, ConfigError,
            "[kernels::fused_attention] expected packed sequences from their first query, got first_query = ",
            options.first_query, ". Pack on one rank.");
  const auto band = inputs.packed_keys ? band_of_packed_keys(inputs, options) : band_of(inputs, options);
  if (!band || inputs.query.numel() == 0 || inputs.key.numel() == 0) return std::nullopt;
  const auto keys = [&](const at::Tensor& x) {
    return x.size(1) == band->num_keys ? x : x.narrow(1, band->first_key, band->num_keys);
  };
  FusedProblem problem{.tensors = {.query = inputs.query,
                                   .key = keys(inputs.key),
                                   .value = keys(inputs.value),
                                   .cu_seqlens = inputs.packed ? inputs.packed->cu_seqlens : at::Tensor()},
                       .call = {.scale = logit_scale(inputs, options),
                                .softcap = options.softcap,
                                .left = band->left,
                                .right = band->right,
                                .max_length = inputs.packed ? inputs.packed->max_length : 0},
                       .first_key = band->first_key};
  if (inputs.packed_keys) {
    problem.tensors.key_cu_seqlens = inputs.packed_keys->cu_seqlens;
    problem.tensors.key_lengths = inputs.packed_keys->lengths;
    problem.call.max_key_length = inputs.packed_keys->max_length;
  }
  return problem;
}

SdpaOutput fused_attention(const SdpaInputs& inputs, const SdpaOptions& options, FusedSdpaKernel kernel) {
  detail::check_sdpa_shapes("fused_attention", inputs);
  const auto dtype = inputs.query.scalar_type();
  D9D_CHECK(inputs.query.is_cuda() && (dtype == at::kBFloat16 || dtype == at::kHalf) && !inputs.mask &&
                inputs.query.size(3) % 8 == 0 && inputs.query.size(3) <= 256,
            ConfigError,
            "[kernels::fused_attention] expected bf16 or half on a GPU, at most 256 features in a multiple of 8 and no "
            "mask, got ",
            dtype, " ", inputs.query.sizes(), " on ", inputs.query.device(), inputs.mask ? " and a mask" : "",
            ". Use eager_attention.");
  std::optional<detail::FusedProblem> problem = detail::fused_problem(inputs, options);
  if (!problem) return eager_attention(inputs, options);
  detail::FusedTensors& tensors = problem->tensors;
  const detail::FusedCall& call = problem->call;
  const bool has_rooms = tensors.key_lengths.defined();
  const std::optional<FusedSdpaKernel> chosen =
      has_rooms ? FusedSdpaKernel::kFlash : detail::kernel_for(tensors, call, inputs.sinks.has_value(), kernel);
  if (!chosen) {
    const char* const refusal = detail::cudnn_refusal(tensors, call, inputs.sinks.has_value());
    D9D_CHECK(!call.softcap, ConfigError, "[kernels::fused_attention] expected no softcap but with cuDNN, which ",
              refusal == nullptr ? "is not the kernel asked for" : refusal, ". Use eager_attention.");
    return eager_attention(inputs, options);
  }
  if (inputs.packed || *chosen == FusedSdpaKernel::kFlash) {
    for (at::Tensor* x : {&tensors.query, &tensors.key, &tensors.value}) *x = readable(*x);
  }
  if (has_rooms) return attend_to_rooms(tensors, call, inputs.sinks);
  const auto if_defined = [](const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; };
  const auto result =
      FusedAttention::apply(tensors.query, tensors.key, tensors.value, inputs.sinks, if_defined(tensors.cu_seqlens),
                            if_defined(tensors.key_cu_seqlens), call, *chosen);
  return {.out = result[0], .logsumexp = result[1]};
}

}  // namespace d9d::kernels
