#include "d9d/blocks/moe/token_dispatcher.h"

#include <ATen/core/Tensor.h>

namespace d9d {
namespace {

class LocallyDispatchedTokens final : public DispatchedTokens {
 public:
  LocallyDispatchedTokens(kernels::PermutedTokens tokens, kernels::TokenPermutation permutation)
      : DispatchedTokens(std::move(tokens), permutation.groups), permutation_(std::move(permutation)) {}
  at::Tensor combine(const at::Tensor& expert_outputs) const override {
    return kernels::unpermute(expert_outputs, permutation_);
  }

 private:
  kernels::TokenPermutation permutation_;
};

}  // namespace

std::unique_ptr<DispatchedTokens> LocalTokenDispatcher::dispatch(const at::Tensor& x, const at::Tensor& expert_ids,
                                                                 const at::Tensor& probs) const {
  kernels::TokenPermutation permutation = kernels::build_token_permutation(
      {.expert_ids = expert_ids, .num_experts = num_experts_, .num_rows = expert_ids.numel()});
  kernels::PermutedTokens tokens = kernels::permute(x, probs, permutation);
  return std::make_unique<LocallyDispatchedTokens>(std::move(tokens), std::move(permutation));
}

}  // namespace d9d
