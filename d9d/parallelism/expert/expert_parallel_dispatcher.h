// Sends each token to the ranks of its experts and returns the outputs, by all_to_all.
#pragma once

#include "d9d/blocks/moe/token_dispatcher.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Rank r of the group has experts [r * E / W, (r + 1) * E / W). dispatch() and combine() are collective over the group,
// in forward and in backward, also for ranks that have or receive no tokens. dispatch() synchronises the host with the
// device, to read the numbers of rows to send and to receive. A token's outputs are added in the order of its choices,
// as on one rank. Exchanges go over the communicator of the lane (World::lane) that dispatch() is called in, so that
// those of a forward and of a backward that run at the same time do not wait for each other.
class ExpertParallelTokenDispatcher final : public TokenDispatcher {
 public:
  // ranks has one axis. Throws ConfigError unless the number of ranks divides num_experts.
  ExpertParallelTokenDispatcher(std::int64_t num_experts, DeviceMesh ranks);
  [[nodiscard]] std::unique_ptr<DispatchedTokens> dispatch(const at::Tensor& x, const at::Tensor& expert_ids,
                                                           const at::Tensor& probs) const override;

 private:
  std::int64_t num_experts_;
  DeviceMesh ranks_;
};

}  // namespace d9d
