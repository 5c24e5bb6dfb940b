#include "d9d/pipelining/executor/measure_links.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/core/device/moment.h"
#include "d9d/pipelining/executor/message_layout.h"
#include "d9d/pipelining/executor/transfer_text.h"

namespace d9d {
namespace {

using Leaves = std::vector<at::Tensor>;

// Measures round trips of messages over this rank's links.
class RoundTrips {
 public:
  RoundTrips(const DistContext& context, const StageLinksConfig& config, std::int64_t num_repeats)
      : device_(context.device()),
        rank_(context.mesh(MeshDomain::kRegular).axis_coordinate("pp")),
        num_repeats_(num_repeats),
        links_(context, StagePlacement::loop(context.mesh(MeshDomain::kRegular).axis_size("pp"), 1), config) {}

  void begin(const LinkSample& sample, const Leaves& smallest) {
    std::map<std::int64_t, LinkStep> steps;
    const auto add = [&](std::int64_t peer, const Leaves& leaves) {
      steps[peer] = {.largest_bytes = std::max(message_bytes(leaves), message_bytes(smallest)),
                     .transfers = transfer_text(leaves)};
    };
    if (!sample.from_before.empty()) add(rank_ - 1, sample.from_before);
    if (!sample.to_next.empty()) add(rank_ + 1, sample.to_next);
    links_.begin_step(steps);
  }

  // Returns the seconds of one direction: half of the median round trip.
  double to_next(const Leaves& like) {
    Leaves leaves;
    for (const at::Tensor& leaf : like) leaves.push_back(at::zeros(leaf.sizes(), leaf.options().device(device_)));
    std::vector<std::pair<Moment, Moment>> trips;
    for (std::int64_t i = 0; i <= num_repeats_; ++i) {
      const Moment begin(device_);
      links_.send({.source = {rank_}, .target = {rank_ + 1}, .microbatch = {i}}, leaves);
      (void)links_.receive({.source = {rank_ + 1}, .target = {rank_}, .microbatch = {i}}, leaves);
      trips.emplace_back(begin, Moment(device_));
    }
    trips.erase(trips.begin());
    return median_seconds(trips) / 2;
  }

  void send_back(const Leaves& like) {
    for (std::int64_t i = 0; i <= num_repeats_; ++i) {
      const Leaves leaves = links_.receive({.source = {rank_ - 1}, .target = {rank_}, .microbatch = {i}}, like);
      links_.send({.source = {rank_}, .target = {rank_ - 1}, .microbatch = {i}}, leaves);
    }
  }

  void finish() { links_.finish(); }

 private:
  c10::Device device_;
  std::int64_t rank_;
  std::int64_t num_repeats_;
  StageLinks links_;
};

}  // namespace

LinkCosts measure_links(const DistContext& context, const StageLinksConfig& config, const LinkSample& sample) {
  const Leaves one_number = {at::empty({1}, at::TensorOptions(at::kMeta).dtype(at::kFloat))};
  RoundTrips trips(context, config, sample.num_repeats);
  trips.begin(sample, one_number);
  LinkCosts costs;
  if (!sample.from_before.empty()) trips.send_back(one_number), trips.send_back(sample.from_before);
  if (!sample.to_next.empty()) {
    costs.latency = trips.to_next(one_number);
    costs.time = std::max(0.0, trips.to_next(sample.to_next) - costs.latency);
  }
  trips.finish();
  return costs;
}

}  // namespace d9d
