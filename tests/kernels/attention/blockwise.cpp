#include "tests/kernels/attention/blockwise.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace d9d::kernels::attention_testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Block {
  std::int64_t first_query, num_queries, first_key, num_keys;
  SdpaOptions options;
  std::optional<PackedSequences> packed = std::nullopt;
  std::optional<PackedKeys> packed_keys = std::nullopt;
};

PackedSequences in_range(const PackedSequences& packed, std::int64_t first, std::int64_t count) {
  return {.cu_seqlens = (packed.cu_seqlens - first).clamp(0, count), .max_length = std::min(packed.max_length, count)};
}

std::vector<Block> blocks_of(std::int64_t num_queries, std::int64_t num_keys, const SdpaInputs& inputs,
                             const SdpaOptions& options) {
  const std::int64_t half = num_keys / 2;
  SdpaOptions all = options;
  all.causal = false;
  std::vector<Block> blocks = {{0, num_queries, 0, half, all}, {0, num_queries, half, half, all}};
  if (options.causal) {
    const std::int64_t reach = std::min(half, options.window_left.value_or(half));
    if (options.window_left) all.first_query = reach;
    blocks = {{0, half, 0, half, options}, {half, half, half, half, options}};
    if (reach > 0) blocks.push_back({half, reach, half - reach, reach, all});
  }
  if (!inputs.packed) return blocks;
  for (Block& each : blocks) {
    each.packed = in_range(*inputs.packed, each.first_query, each.num_queries);
    if (each.options.causal) continue;
    const PackedSequences keys = in_range(*inputs.packed, each.first_key, each.num_keys);
    each.packed_keys = {.cu_seqlens = keys.cu_seqlens, .lengths = {}, .max_length = keys.max_length};
  }
  return blocks;
}

struct Call final : torch::CustomClassHolder {
  explicit Call(std::vector<Block> blocks_) : blocks(std::move(blocks_)) {}
  std::vector<Block> blocks;
};

struct Blockwise : torch::autograd::Function<Blockwise> {
  static at::Tensor narrowed(const at::Tensor& x, std::int64_t first, std::int64_t count) {
    return x.narrow(1, first, count);
  }

  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::optional<at::Tensor>& sinks,
                               const c10::intrusive_ptr<Call>& call) {
    std::vector<SdpaPart> parts;
    for (const Block& each : call->blocks) {
      const at::Tensor q = narrowed(query, each.first_query, each.num_queries),
                       k = narrowed(key, each.first_key, each.num_keys),
                       v = narrowed(value, each.first_key, each.num_keys);
      const SdpaInputs inputs{.query = q, .key = k, .value = v, .packed = each.packed, .packed_keys = each.packed_keys};
      parts.push_back({attend_to_block(inputs, each.options), each.first_query});
    }
    const SdpaOutput merged = merge_blocks(parts, query, sinks);
    context->save_for_backward({query, key, value, sinks.value_or(at::Tensor()), merged.out, merged.logsumexp});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->mark_non_differentiable({merged.logsumexp});
    return {merged.out, merged.logsumexp};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const at::Tensor grad_query = at::zeros(saved[0].sizes(), saved[0].options()), grad_key = at::zeros_like(saved[1]),
                     grad_value = at::zeros_like(saved[2]);
    for (const Block& each : call->blocks) {
      const auto queries = [&](const at::Tensor& x) { return narrowed(x, each.first_query, each.num_queries); };
      const auto keys = [&](const at::Tensor& x) { return narrowed(x, each.first_key, each.num_keys); };
      const at::Tensor q = queries(saved[0]), k = keys(saved[1]), v = keys(saved[2]);
      const SdpaOutput merged{.out = queries(saved[4]),
                              .logsumexp = saved[5].narrow(2, each.first_query, each.num_queries)};
      const SdpaInputs inputs{.query = q, .key = k, .value = v, .packed = each.packed, .packed_keys = each.packed_keys};
      const SdpaGradients part = block_gradients(queries(grads[0]), inputs, merged, each.options);
      queries(grad_query).add_(part.query);
      keys(grad_key).add_(part.key);
      keys(grad_value).add_(part.value);
    }
    variable_list result = {grad_query, grad_key, grad_value, at::Tensor(), at::Tensor()};
    if (saved[3].defined()) {
      result[3] = sink_gradient(grads[0].contiguous(), {.out = saved[4], .logsumexp = saved[5]}, saved[3]);
    }
    return result;
  }
};

}  // namespace

SdpaOutput blockwise_attention(const SdpaInputs& inputs, const SdpaOptions& options) {
  const auto call = c10::make_intrusive<Call>(blocks_of(inputs.query.size(1), inputs.key.size(1), inputs, options));
  const auto result = Blockwise::apply(inputs.query, inputs.key, inputs.value, inputs.sinks, call);
  return {.out = result[0], .logsumexp = result[1]};
}

}  // namespace d9d::kernels::attention_testing
