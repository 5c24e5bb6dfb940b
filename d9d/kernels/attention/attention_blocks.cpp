#include "d9d/kernels/attention/attention_blocks.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/attention/attention_kernel.h"
#include "d9d/kernels/attention/fused_kernels.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"

namespace d9d::kernels {
namespace {

constexpr std::int64_t kPositions = 1;  // dim of [B, S, H, D]

// What a fused kernel computes of a block, and which one.
struct FusedBlock {
  detail::FusedProblem problem;
  FusedSdpaKernel kernel;
};

// nullopt for eager_attention.
std::optional<FusedBlock> fused_block(const SdpaInputs& inputs, const SdpaOptions& options,
                                      const SdpaPreferences& preferences) {
  if (inputs.mask) return std::nullopt;
  SdpaRequest request{.needs = {.window = options.window_left || options.window_right,
                                .packed = inputs.packed.has_value(),
                                .softcap = options.softcap.has_value()},
                      .device = sdpa_device_of(inputs.query),
                      .preferences = preferences};
  SdpaBackend backend = resolve_sdpa(request).backend;
  if (backend == SdpaBackend::kTorch) {  // which returns no logsumexp
    request.needs.logsumexp = true;
    backend = resolve_sdpa(request).backend;
  }
  if (backend == SdpaBackend::kEager) return std::nullopt;
  std::optional<detail::FusedProblem> problem = detail::fused_problem(inputs, options);
  if (!problem) return std::nullopt;
  const std::optional<FusedSdpaKernel> kernel =
      detail::kernel_for(problem->tensors, problem->call, /*has_sinks=*/false,
                         backend == SdpaBackend::kCudnn ? FusedSdpaKernel::kCudnn : FusedSdpaKernel::kFlash);
  if (!kernel) return std::nullopt;
  return FusedBlock{.problem = *problem, .kernel = *kernel};
}

// What a kernel writes for these queries.
SdpaOutput empty_output(const at::Tensor& query) {
  return {.out = at::empty(query.sizes(), query.options()),
          .logsumexp =
              at::empty({query.size(0), query.size(2), query.size(kPositions)}, query.options().dtype(at::kFloat))};
}

// [B, S, H, D] as [1, B * S, H, D] contiguous, as kernels take packed sequences.
at::Tensor in_one_row(const at::Tensor& x) { return detail::in_one_row(detail::readable(x)); }

// exp(part - whole) for [B, Hq, S], as a factor of [B, S, Hq, D]; 0 where a query sees nothing.
at::Tensor weight_of(const at::Tensor& part, const at::Tensor& whole) {
  return (part - whole).exp().nan_to_num(0).transpose(1, 2).unsqueeze(-1);
}

// The logsumexp has any strides.
SdpaOutput block_output(const SdpaInputs& inputs, const SdpaOptions& options, const SdpaPreferences& preferences) {
  const std::optional<FusedBlock> fused = fused_block(inputs, options, preferences);
  if (!fused) return eager_attention(inputs, options);
  const detail::FusedForward result = detail::fused_forward(fused->problem.tensors, /*sinks=*/{}, fused->problem.call,
                                                            fused->kernel, inputs.query.requires_grad());
  return {.out = result.out, .logsumexp = result.logsumexp};
}

SdpaGradients eager_gradients(const at::Tensor& grad_out, const SdpaInputs& inputs, const SdpaOutput& merged,
                              const SdpaOptions& options) {
  const at::AutoGradMode records(true);
  const auto leaf = [](const at::Tensor& x) { return x.detach().requires_grad_(); };
  const at::Tensor query = leaf(inputs.query), key = leaf(inputs.key), value = leaf(inputs.value);
  SdpaInputs own{.query = query,
                 .key = key,
                 .value = value,
                 .mask = inputs.mask,
                 .packed = inputs.packed,
                 .packed_keys = inputs.packed_keys};
  const SdpaOutput block = eager_attention(own, options);
  // merged.out is the sum of weight * out over blocks, with weight = exp(logsumexp - merged.logsumexp).
  const at::Tensor weight = weight_of(block.logsumexp.detach(), merged.logsumexp);
  const at::Tensor grad = grad_out.to(weight.scalar_type()) * weight;
  const at::Tensor beyond = (block.out.detach() - merged.out).to(weight.scalar_type());
  const auto gradients =
      torch::autograd::grad({block.out, block.logsumexp}, {query, key, value},
                            {grad.to(grad_out.scalar_type()), (grad * beyond).sum(-1).transpose(1, 2)});
  return {.query = gradients[0], .key = gradients[1], .value = gradients[2]};
}

SdpaOutput merged_by_kernel(const std::vector<SdpaPart>& parts, const at::Tensor& query,
                            const std::optional<at::Tensor>& sinks) {
  const c10::DeviceGuard guard(query.device());
  const at::Tensor float_sinks = sinks ? sinks->to(at::kFloat).contiguous() : at::Tensor();
  SdpaOutput merged = empty_output(query);
  detail::MergeBlocksArgs args{.dtype = detail::dtype_of(query),
                               .num_parts = static_cast<int>(parts.size()),
                               .batch = query.size(0),
                               .num_queries = query.size(kPositions),
                               .num_heads = query.size(2),
                               .num_features = query.size(3),
                               .sinks = sinks ? float_sinks.const_data_ptr<float>() : nullptr,
                               .out = merged.out.mutable_data_ptr(),
                               .logsumexp = merged.logsumexp.mutable_data_ptr<float>()};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    args.parts[i] = {.out = parts[i].result.out.const_data_ptr(),
                     .logsumexp = parts[i].result.logsumexp.const_data_ptr<float>(),
                     .first_query = parts[i].first_query,
                     .num_queries = parts[i].result.out.size(kPositions)};
  }
  detail::launch_merge_blocks(args, current_cuda_stream(query.device()));
  return merged;
}

bool has_merge_kernel(const std::vector<SdpaPart>& parts, const at::Tensor& query) {
  const bool is_half = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  return is_half && query.size(3) % 8 == 0 && query.size(3) <= 256 && query.numel() > 0 &&
         std::ssize(parts) <= detail::MergeBlocksArgs::kMaxParts && detail::has_cuda_kernels(query) &&
         std::ranges::all_of(parts, [](const SdpaPart& part) {
           return part.result.out.is_contiguous() && detail::is_aligned(part.result.out);
         });
}

}  // namespace

SdpaOutput attend_to_block(const SdpaInputs& inputs, const SdpaOptions& options, const SdpaPreferences& preferences) {
  D9D_ASSERT(!inputs.sinks, "attend_to_block with sinks, which merge_blocks takes");
  const at::NoGradGuard no_grad;
  if (inputs.query.is_meta()) return empty_output(inputs.query);
  const std::int64_t batch = inputs.query.size(0);
  if (inputs.packed && batch > 1) {
    const at::Tensor query = in_one_row(inputs.query), key = in_one_row(inputs.key), value = in_one_row(inputs.value);
    const SdpaOutput row = block_output(
        {.query = query, .key = key, .value = value, .packed = inputs.packed, .packed_keys = inputs.packed_keys},
        options, preferences);
    return {.out = row.out.view(inputs.query.sizes()),
            .logsumexp = row.logsumexp.squeeze(0).unflatten(1, {batch, -1}).transpose(0, 1).contiguous()};
  }
  const SdpaOutput result = block_output(inputs, options, preferences);
  return {.out = result.out, .logsumexp = result.logsumexp.contiguous()};
}

SdpaOutput merge_blocks(const std::vector<SdpaPart>& parts, const at::Tensor& query,
                        const std::optional<at::Tensor>& sinks) {
  const at::NoGradGuard no_grad;
  const bool is_whole = parts.size() == 1 && parts.front().result.out.size(kPositions) == query.size(kPositions);
  if (is_whole && !sinks) return parts.front().result;
  if (query.is_meta()) return empty_output(query);
  if (has_merge_kernel(parts, query)) return merged_by_kernel(parts, query, sinks);
  const auto options = query.options().dtype(query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor logsumexp = at::full({query.size(0), query.size(2), query.size(kPositions)},
                                  -std::numeric_limits<double>::infinity(), options);
  const auto queries_of = [](const SdpaPart& part, const at::Tensor& whole, std::int64_t dim) {
    return whole.narrow(dim, part.first_query, part.result.out.size(kPositions));
  };
  for (const SdpaPart& part : parts) {
    const at::Tensor here = queries_of(part, logsumexp, 2);
    here.copy_(at::logaddexp(here, part.result.logsumexp));
  }
  if (sinks) logsumexp = at::logaddexp(logsumexp, sinks->to(options).view({1, -1, 1}));
  const at::Tensor out = at::zeros(query.sizes(), options);
  for (const SdpaPart& part : parts) {
    const at::Tensor weight = weight_of(part.result.logsumexp, queries_of(part, logsumexp, 2));
    queries_of(part, out, kPositions).addcmul_(part.result.out.to(options), weight);
  }
  return {.out = out.to(query.scalar_type()), .logsumexp = logsumexp};
}

SdpaGradients block_gradients(const at::Tensor& grad_out, const SdpaInputs& inputs, const SdpaOutput& merged,
                              const SdpaOptions& options, const SdpaPreferences& preferences) {
  if (inputs.query.is_meta()) {
    const auto empty_like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    return {.query = empty_like(inputs.query), .key = empty_like(inputs.key), .value = empty_like(inputs.value)};
  }
  if (inputs.packed && inputs.query.size(0) > 1) {
    const at::Tensor query = in_one_row(inputs.query), key = in_one_row(inputs.key), value = in_one_row(inputs.value);
    const SdpaOutput row{.out = in_one_row(merged.out),
                         .logsumexp = detail::in_one_row(merged.logsumexp.transpose(1, 2)).transpose(1, 2)};
    const SdpaGradients found = block_gradients(
        in_one_row(grad_out),
        {.query = query, .key = key, .value = value, .packed = inputs.packed, .packed_keys = inputs.packed_keys}, row,
        options, preferences);
    return {.query = found.query.view(inputs.query.sizes()),
            .key = found.key.view(inputs.key.sizes()),
            .value = found.value.view(inputs.key.sizes())};
  }
  const std::optional<FusedBlock> fused = fused_block(inputs, options, preferences);
  if (!fused) return eager_gradients(grad_out, inputs, merged, options);
  const detail::FusedProblem& problem = fused->problem;
  const detail::FusedGradients gradients =
      detail::fused_backward(grad_out, /*grad_logsumexp=*/{}, problem.tensors,
                             {.out = merged.out, .logsumexp = merged.logsumexp}, problem.call, fused->kernel);
  const std::int64_t num_keys = inputs.key.size(kPositions);
  const auto of_all_keys = [&](const at::Tensor& x) {
    if (x.size(kPositions) == num_keys) return x;
    return at::constant_pad_nd(x, {0, 0, 0, 0, problem.first_key, num_keys - problem.first_key - x.size(kPositions)});
  };
  return {.query = gradients.query, .key = of_all_keys(gradients.key), .value = of_all_keys(gradients.value)};
}

at::Tensor sink_gradient(const at::Tensor& grad_out, const SdpaOutput& merged, const at::Tensor& sinks) {
  return detail::sink_gradient(grad_out, {}, {.out = merged.out, .logsumexp = merged.logsumexp}, sinks);
}

}  // namespace d9d::kernels
