#include "d9d/parallelism/context/all_gather_attention.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kMaskQueries = 2;  // of [B, Hq, S / W, S]

}  // namespace

at::Tensor AllGatherAttentionContext::attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                             const kernels::SdpaPreferences& preferences) const {
  D9D_CHECK(!inputs.packed, ConfigError,
            "[parallelism::context] expected no packed sequences, got some. Pack without context parallelism.");
  const at::Tensor gathered =
      all_gather_along(at::cat({inputs.key, inputs.value}, kHeads), kPositions, positions_.ranks().lane_communicator());
  const std::vector<at::Tensor> both = positions_.in_order(gathered, kPositions).chunk(2, kHeads);
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (const FlatRange& range : positions_.ranges(gathered.size(kPositions))) {
    kernels::SdpaOptions here = options;
    here.first_query = options.first_query + range.begin;
    kernels::SdpaInputs own{.query = inputs.query.narrow(kPositions, first, range.numel()),
                            .key = both[0],
                            .value = both[1],
                            .mask = inputs.mask,
                            .sinks = inputs.sinks};
    const bool is_of_queries = inputs.mask && inputs.mask->size(kMaskQueries) > 1;  // not broadcast over them
    if (is_of_queries) own.mask = inputs.mask->narrow(kMaskQueries, first, range.numel());
    outputs.push_back(kernels::scaled_dot_product_attention(own, here, preferences));
    first += range.numel();
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, kPositions);
}

}  // namespace d9d
