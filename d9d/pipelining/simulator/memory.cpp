#include "d9d/pipelining/simulator/memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace d9d {
namespace {

bool trains(const Simulation& run) {
  return std::ranges::any_of(run.computations,
                             [](const ComputeSpan& span) { return !holds<ForwardAction>(span.action); });
}

// Indices of the bytes that are dropped and of the bytes that are added at one time. Both changes are applied together,
// so that a peak does not count the bytes that are dropped at the same time.
enum Turn : std::size_t { kDrop, kAdd };

}  // namespace

std::vector<MemorySample> memory_curve(const Simulation& run, const PipelineCosts& costs, std::int64_t rank) {
  const bool keeps = trains(run);
  std::map<double, std::array<double, 2>> changes;
  for (const auto& span : run.computations) {
    if (span.rank != rank) continue;
    const StageCosts& stage = costs_of(costs, stage_of(span.action));
    if (holds<ForwardAction>(span.action)) {
      changes[span.start][kAdd] += stage.activation_bytes;
      if (!keeps) changes[span.end][kDrop] -= stage.activation_bytes;
    } else if (holds<BackwardWeightAction>(span.action)) {
      changes[span.end][kDrop] -= stage.deferred_bytes;
    } else {
      changes[span.end][kDrop] -= stage.activation_bytes;
      if (holds<BackwardInputAction>(span.action)) changes[span.end][kDrop] += stage.deferred_bytes;
    }
  }
  std::vector<MemorySample> curve;
  double bytes = 0;
  for (const auto& [time, change] : changes) {
    bytes += change[kDrop] + change[kAdd];
    if (curve.empty() || curve.back().bytes != bytes) curve.push_back({.time = time, .bytes = bytes});
  }
  return curve;
}

double peak_bytes(const Simulation& run, const PipelineCosts& costs, std::int64_t rank) {
  double peak = 0;
  for (const auto& sample : memory_curve(run, costs, rank)) peak = std::max(peak, sample.bytes);
  return peak;
}

}  // namespace d9d
