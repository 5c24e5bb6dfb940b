#include "d9d/parallelism/expert/expert_parallel_dispatcher.h"

#include <numeric>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/core/communicator/to_host.h"

namespace d9d {
namespace {

using Splits = std::vector<std::int64_t>;

// The number of rows sent to each rank and received from each rank.
struct Exchange {
  CommunicatorPtr communicator;
  Splits sent;
  Splits received;
};

class RemotelyDispatchedTokens final : public DispatchedTokens {
 public:
  RemotelyDispatchedTokens(kernels::PermutedTokens tokens, kernels::TokenPermutation here,
                           kernels::TokenPermutation there, Exchange exchange)
      : DispatchedTokens(std::move(tokens), there.groups),
        here_(std::move(here)),
        there_(std::move(there)),
        exchange_(std::move(exchange)) {}

  at::Tensor combine(const at::Tensor& expert_outputs) const override {
    const at::Tensor by_source = kernels::unpermute(expert_outputs, there_);
    const at::Tensor returned = all_to_all_rows(by_source, exchange_.sent, exchange_.received, exchange_.communicator);
    return kernels::unpermute(returned, here_);
  }

 private:
  kernels::TokenPermutation here_;   // of this rank's tokens, by expert
  kernels::TokenPermutation there_;  // of the received rows, from source-major to expert-major
  Exchange exchange_;
};

Splits row_sums(const at::Tensor& counts) {
  const at::Tensor sums = counts.sum(1).contiguous();
  return {sums.const_data_ptr<std::int64_t>(), sums.const_data_ptr<std::int64_t>() + sums.numel()};
}

// [E] on the CPU: the counts for tokens without values, which are distributed evenly over all experts.
at::Tensor balanced_counts(std::int64_t num_rows, std::int64_t num_experts) {
  at::Tensor counts = at::full({num_experts}, num_rows / num_experts, at::kLong);
  counts.narrow(0, 0, num_rows % num_experts).add_(1);
  return counts;
}

}  // namespace

ExpertParallelTokenDispatcher::ExpertParallelTokenDispatcher(std::int64_t num_experts, DeviceMesh ranks)
    : num_experts_(num_experts), ranks_(std::move(ranks)) {
  D9D_CHECK(num_experts % ranks_.num_ranks() == 0, ConfigError,
            "[parallelism::expert] expected num_experts = ", num_experts, " to be divisible by the ",
            ranks_.num_ranks(), " ranks of expert parallelism. Set mesh.expert_parallel to ",
            std::gcd(num_experts, ranks_.num_ranks()), ".");
}

std::unique_ptr<DispatchedTokens> ExpertParallelTokenDispatcher::dispatch(const at::Tensor& x,
                                                                          const at::Tensor& expert_ids,
                                                                          const at::Tensor& probs) const {
  const std::int64_t num_ranks = ranks_.num_ranks();
  Exchange exchange{.communicator = ranks_.lane_communicator(), .sent = {}, .received = {}};
  kernels::TokenPermutation here = kernels::build_token_permutation(
      {.expert_ids = expert_ids, .num_experts = num_experts_, .num_rows = expert_ids.numel()});
  const kernels::PermutedTokens ours = kernels::permute(x, probs, here);

  const at::Tensor sent = here.groups.counts().to(at::kLong);  // [E] rows per expert, the experts of rank 0 first
  const at::Tensor received = at::empty_like(sent);            // [W, E / W] rows from each rank to each local expert
  const Splits equal(static_cast<std::size_t>(num_ranks), num_experts_ / num_ranks);
  exchange.communicator->all_to_all(received, sent, equal, equal).wait();
  const auto on_host = [&](const at::Tensor& rows) {
    if (rows.is_meta()) return balanced_counts(expert_ids.numel(), num_experts_).view({num_ranks, -1});
    return to_host(rows.view({num_ranks, -1}), *exchange.communicator);
  };
  const at::Tensor counts = on_host(received);
  exchange.sent = row_sums(on_host(sent));
  exchange.received = row_sums(counts);

  const at::Tensor rows = all_to_all_rows(ours.hidden_states, exchange.received, exchange.sent, exchange.communicator);
  const at::Tensor row_probs =
      all_to_all_rows(ours.probs.unsqueeze(1), exchange.received, exchange.sent, exchange.communicator);
  const at::Tensor expert = at::arange(counts.size(1), at::kLong).repeat({num_ranks});
  const at::Tensor expert_of_row = at::repeat_interleave(expert, counts.reshape({-1})).to(x.device());
  kernels::TokenPermutation there = kernels::build_token_permutation(
      {.expert_ids = expert_of_row.unsqueeze(1), .num_experts = counts.size(1), .num_rows = expert_of_row.numel()});
  kernels::PermutedTokens by_expert = kernels::permute(rows, row_probs, there);
  return std::make_unique<RemotelyDispatchedTokens>(std::move(by_expert), std::move(here), std::move(there),
                                                    std::move(exchange));
}

}  // namespace d9d
