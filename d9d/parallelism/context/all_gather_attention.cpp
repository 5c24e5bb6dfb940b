#include "d9d/parallelism/context/all_gather_attention.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

constexpr std::int64_t kHeads = 2;

}  // namespace

at::Tensor AllGatherAttentionContext::attend(const AttentionCore& core, const kernels::SdpaInputs& inputs,
                                             const kernels::SdpaOptions& options) const {
  D9D_CHECK(!inputs.packed, ConfigError,
            "[parallelism::context] expected no packed sequences, got some. Pack without context parallelism.");
  const CommunicatorPtr communicator = ranks_.lane_communicator();
  const at::Tensor both = all_gather_along(at::cat({inputs.key, inputs.value}, kHeads), kPositions, communicator);
  const std::vector<at::Tensor> parts = both.chunk(2, kHeads);
  kernels::SdpaOptions here = options;
  here.first_query = options.first_query + communicator->rank() * inputs.query.size(kPositions);
  return core({.query = inputs.query, .key = parts[0], .value = parts[1], .mask = inputs.mask, .sinks = inputs.sinks},
              here);
}

}  // namespace d9d
