#include "tests/kernels/attention/blockwise.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace d9d::kernels::attention_testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Block {
  std::int64_t first_query, num_queries, first_key, num_keys;
  bool is_causal;
};

std::vector<Block> blocks_of(std::int64_t num_queries, std::int64_t num_keys, bool is_causal) {
  const std::int64_t half = num_keys / 2;
  if (!is_causal) return {{0, num_queries, 0, half, false}, {0, num_queries, half, half, false}};
  return {{0, half, 0, half, true}, {half, half, 0, half, false}, {half, half, half, half, true}};
}

struct Blockwise : torch::autograd::Function<Blockwise> {
  static at::Tensor narrowed(const at::Tensor& x, std::int64_t first, std::int64_t count) {
    return x.narrow(1, first, count);
  }

  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::optional<at::Tensor>& sinks,
                               const SdpaOptions& options) {
    std::vector<SdpaPart> parts;
    for (const Block& each : blocks_of(query.size(1), key.size(1), options.causal)) {
      SdpaOptions how = options;
      how.causal = each.is_causal;
      const at::Tensor q = narrowed(query, each.first_query, each.num_queries),
                       k = narrowed(key, each.first_key, each.num_keys),
                       v = narrowed(value, each.first_key, each.num_keys);
      parts.push_back({attend_to_block({.query = q, .key = k, .value = v}, how), each.first_query});
    }
    const SdpaOutput merged = merge_blocks(parts, query, sinks);
    context->save_for_backward({query, key, value, sinks.value_or(at::Tensor()), merged.out, merged.logsumexp});
    context->saved_data["causal"] = options.causal;
    context->saved_data["softcap"] = options.softcap;
    context->mark_non_differentiable({merged.logsumexp});
    return {merged.out, merged.logsumexp};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool is_causal = context->saved_data["causal"].toBool();
    const at::Tensor grad_query = at::zeros(saved[0].sizes(), saved[0].options()), grad_key = at::zeros_like(saved[1]),
                     grad_value = at::zeros_like(saved[2]);
    for (const Block& each : blocks_of(saved[0].size(1), saved[1].size(1), is_causal)) {
      const SdpaOptions how{.causal = each.is_causal, .softcap = context->saved_data["softcap"].toOptional<double>()};
      const auto queries = [&](const at::Tensor& x) { return narrowed(x, each.first_query, each.num_queries); };
      const auto keys = [&](const at::Tensor& x) { return narrowed(x, each.first_key, each.num_keys); };
      const at::Tensor q = queries(saved[0]), k = keys(saved[1]), v = keys(saved[2]);
      const SdpaOutput merged{.out = queries(saved[4]),
                              .logsumexp = saved[5].narrow(2, each.first_query, each.num_queries)};
      const SdpaGradients part = block_gradients(queries(grads[0]), {.query = q, .key = k, .value = v}, merged, how);
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
  const auto result = Blockwise::apply(inputs.query, inputs.key, inputs.value, inputs.sinks, options);
  return {.out = result[0], .logsumexp = result[1]};
}

}  // namespace d9d::kernels::attention_testing
