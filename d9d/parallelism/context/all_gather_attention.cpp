#include "d9d/parallelism/context/all_gather_attention.h"

#include <memory>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kMaskQueries = 2;  // of [B, Hq, S / W, S]

// Queries of packed sequences are the last positions of their keys, which end with a range of queries if no query sees
// a later key. Otherwise all keys of a sequence belong to each of its queries, wherever these are.
void check_packed(const kernels::SdpaOptions& options) {
  D9D_CHECK(
      options.causal || !(options.window_left || options.window_right), ConfigError,
      "[parallelism::context] expected packed sequences with causal attention, or without a window, got a window "
      "of attention that is not causal. Use context-parallel ranks that divide the heads, or sequences that are not "
      "packed.");
}

}  // namespace

at::Tensor AllGatherAttentionContext::attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                             const kernels::SdpaPreferences& preferences) const {
  if (inputs.packed) check_packed(options);
  const at::Tensor gathered =
      all_gather_along(at::cat({inputs.key, inputs.value}, kHeads), kPositions, positions_.ranks().lane_communicator());
  const std::vector<at::Tensor> both = positions_.in_order(gathered, kPositions).chunk(2, kHeads);
  const std::int64_t length = gathered.size(kPositions);
  std::shared_ptr<const PackedRows> rows;
  if (inputs.packed) rows = packed_->of(*inputs.packed, length);
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (const FlatRange& range : positions_.ranges(length)) {
    const std::int64_t num_keys = inputs.packed && options.causal ? range.end : length;
    const auto keys = [&](const at::Tensor& x) { return num_keys == length ? x : x.narrow(kPositions, 0, num_keys); };
    const at::Tensor query = inputs.query.narrow(kPositions, first, range.numel());
    const at::Tensor key = keys(both[0]), value = keys(both[1]);
    kernels::SdpaInputs own{.query = query, .key = key, .value = value, .mask = inputs.mask, .sinks = inputs.sinks};
    const bool is_of_queries = inputs.mask && inputs.mask->size(kMaskQueries) > 1;  // not broadcast over them
    if (is_of_queries) own.mask = inputs.mask->narrow(kMaskQueries, first, range.numel());
    kernels::SdpaOptions here = options;
    if (rows) {
      const PackedSequences of_keys = rows->in({{.begin = 0, .end = num_keys}});
      own.packed = rows->in({range});
      own.packed_keys = {.cu_seqlens = of_keys.cu_seqlens, .lengths = {}, .max_length = of_keys.max_length};
    } else {
      here.first_query = options.first_query + range.begin;
    }
    outputs.push_back(kernels::scaled_dot_product_attention(own, here, preferences));
    first += range.numel();
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, kPositions);
}

}  // namespace d9d
