#include "d9d/parallelism/context/heads_attention.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

constexpr std::int64_t kHeadsDim = 2;                       // of [B, S, H, D]
constexpr std::int64_t kRanksDim = 2, kHeadsOfRankDim = 3;  // of [B, S, W, H / W, D]

// Heads [B, S / W, H, D] by the rank that gets them, [B, S / W, W, H / W, D]. With fewer heads than ranks each is
// copied for those that share it.
at::Tensor by_rank(const at::Tensor& heads, std::int64_t num_ranks) {
  const std::int64_t num_heads = heads.size(kHeadsDim);
  if (num_heads >= num_ranks) return heads.unflatten(kHeadsDim, {num_ranks, num_heads / num_ranks});
  const at::Tensor copies = heads.unsqueeze(kHeadsOfRankDim).expand({-1, -1, -1, num_ranks / num_heads, -1});
  return copies.flatten(kHeadsDim, kHeadsOfRankDim).unsqueeze(kHeadsOfRankDim);
}

}  // namespace

bool ranks_divide_heads(std::int64_t num_ranks, std::int64_t num_heads, std::int64_t num_kv_heads) {
  return num_heads % num_ranks == 0 && (num_kv_heads % num_ranks == 0 || num_ranks % num_kv_heads == 0);
}

at::Tensor HeadsAttentionContext::attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                         const kernels::SdpaPreferences& preferences) const {
  const DeviceMesh ranks = positions_.ranks();
  const std::int64_t num_ranks = ranks.num_ranks();
  const std::int64_t num_heads = inputs.query.size(kHeadsDim), num_kv_heads = inputs.key.size(kHeadsDim);
  D9D_CHECK(ranks_divide_heads(num_ranks, num_heads, num_kv_heads), ConfigError,
            "[parallelism::context] expected context-parallel ranks that divide the heads, got ", num_ranks,
            " ranks for ", num_heads, " heads of queries and ", num_kv_heads, " of keys. Gather keys and values.");
  D9D_CHECK(
      !inputs.mask, ConfigError,
      "[parallelism::context] expected no attention mask with heads over ranks, got one. Gather keys and values.");
  const CommunicatorPtr communicator = ranks.lane_communicator();
  const at::Tensor parts =
      at::cat({by_rank(inputs.query, num_ranks), by_rank(inputs.key, num_ranks), by_rank(inputs.value, num_ranks)},
              kHeadsOfRankDim);
  const at::Tensor exchanged = all_to_all_along(parts, kRanksDim, kPositions, communicator).squeeze(kRanksDim);
  const at::Tensor all = positions_.in_order(exchanged, kPositions);  // [B, S, heads of q | k | v of this rank, D]
  const std::int64_t own = num_heads / num_ranks, own_kv = std::max<std::int64_t>(num_kv_heads / num_ranks, 1);
  const at::Tensor query = all.narrow(kHeadsDim, 0, own), key = all.narrow(kHeadsDim, own, own_kv);
  const at::Tensor value = all.narrow(kHeadsDim, own + own_kv, own_kv);
  kernels::SdpaInputs here{.query = query, .key = key, .value = value, .packed = inputs.packed};
  if (inputs.sinks) here.sinks = inputs.sinks->narrow(0, ranks.index() * own, own);
  const at::Tensor out = kernels::scaled_dot_product_attention(here, options, preferences);
  return all_to_all_along(positions_.in_rank_order(out, kPositions), kPositions, kHeadsDim, communicator);
}

}  // namespace d9d
