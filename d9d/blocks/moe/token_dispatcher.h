// Sends tokens to the ranks of their experts and the experts' outputs back. The local form only permutes rows; expert
// parallelism installs another form.
//
// Legend   T tokens here, k experts a token, N rows for the experts here, E experts here, H hidden size; here: on this
//          rank.
#pragma once

#include <memory>

#include "d9d/kernels/moe_permute/moe_permute.h"

namespace d9d {

// One dispatch, which is combined once. It holds what combine needs, so that several dispatches may be in flight.
class DispatchedTokens {
 public:
  virtual ~DispatchedTokens() = default;
  // expert_outputs [N, H], already weighted -> [T, H]: the sum over each token's experts.
  [[nodiscard]] virtual at::Tensor combine(const at::Tensor& expert_outputs) const = 0;

  at::Tensor rows;                    // [N, H], sorted by local expert
  at::Tensor probs;                   // [N]
  kernels::ExpertTokenGroups groups;  // number of rows of each of the E experts

 protected:
  DispatchedTokens(kernels::PermutedTokens tokens, kernels::ExpertTokenGroups token_groups)
      : rows(std::move(tokens.hidden_states)), probs(std::move(tokens.probs)), groups(std::move(token_groups)) {}
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  // x [T, H], expert_ids [T, k] int64 global ids, probs [T, k].
  [[nodiscard]] virtual std::unique_ptr<DispatchedTokens> dispatch(const at::Tensor& x, const at::Tensor& expert_ids,
                                                                   const at::Tensor& probs) const = 0;
};

// This rank holds all experts. Never waits for the device.
class LocalTokenDispatcher final : public TokenDispatcher {
 public:
  explicit LocalTokenDispatcher(std::int64_t num_experts) : num_experts_(num_experts) {}
  [[nodiscard]] std::unique_ptr<DispatchedTokens> dispatch(const at::Tensor& x, const at::Tensor& expert_ids,
                                                           const at::Tensor& probs) const override;

 private:
  std::int64_t num_experts_;
};

}  // namespace d9d
