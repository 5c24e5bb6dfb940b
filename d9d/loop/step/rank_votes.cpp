#include "d9d/loop/step/rank_votes.h"

#include <csignal>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>

#include "d9d/core/device/host_copy.h"

namespace d9d {
namespace {

// Indices of the numbers. From kNumVotes on, next_microbatches of each rank follow.
enum : std::size_t { kInterrupts, kTerminations, kStopRequests, kWorking, kFailed, kDataSeconds, kNumVotes };

}  // namespace

std::vector<double> to_numbers(const RankVotes& votes, const DeviceMesh& ranks) {
  const auto num_ranks = static_cast<std::size_t>(ranks.num_ranks());
  std::vector<double> numbers(kNumVotes + (num_ranks == 1 ? 0 : num_ranks));
  numbers[kInterrupts] = votes.signal == SIGINT ? 1.0 : 0.0;
  numbers[kTerminations] = votes.signal == SIGTERM ? 1.0 : 0.0;
  numbers[kStopRequests] = votes.asks_to_stop ? 1.0 : 0.0;
  numbers[kWorking] = static_cast<double>(votes.save.num_working);
  numbers[kFailed] = static_cast<double>(votes.save.num_failed);
  numbers[kDataSeconds] = votes.data_seconds / static_cast<double>(num_ranks);
  if (num_ranks > 1) {
    numbers[kNumVotes + static_cast<std::size_t>(ranks.index())] = static_cast<double>(votes.next_microbatches);
  }
  return numbers;
}

JobVotes read_votes(std::span<const double> sums) {
  const auto count = [](double sum) { return static_cast<std::int64_t>(sum); };
  const int signal = sums[kTerminations] > 0 ? SIGTERM : sums[kInterrupts] > 0 ? SIGINT : 0;
  JobVotes votes{.stops = signal != 0 || sums[kStopRequests] > 0,
                 .signal = signal,
                 .save = {.num_working = count(sums[kWorking]), .num_failed = count(sums[kFailed])},
                 .data_seconds = sums[kDataSeconds]};
  for (const double next : sums.subspan(kNumVotes)) votes.next_microbatches.push_back(count(next));
  return votes;
}

JobVotes count_votes(const DistContext& context, const SideStream& side, const RankVotes& votes) {
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch);
  const std::vector<double> own = to_numbers(votes, ranks);
  if (ranks.num_ranks() == 1) return read_votes(own);
  std::optional<HostCopy> sums;
  std::ignore = side.run_at_once([&] {
    const at::Tensor numbers = at::tensor(own, at::kDouble).to(context.device());
    ranks.communicator()->all_reduce(numbers, ReduceOp::kSum).wait();
    sums.emplace(numbers, side, context.world());
  });
  const at::Tensor& on_host = sums->wait();
  return read_votes(std::span(on_host.const_data_ptr<double>(), own.size()));
}

}  // namespace d9d
