// Reduces the accumulators of metrics over ranks, those of all metrics together.
//
// Example
//   reduce_metrics({accuracy.get(), largest_loss.get()}, metric_ranks(context));
//   accuracy->compute();                                     // over the updates of all ranks
//   accuracy->reset();
//
//   const StreamEvent ready = side_stream.run([&] { reduce_metrics(...); ... });       // beside the next steps
#pragma once

#include <vector>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/metrics/metric.h"

namespace d9d {

// Collective over `ranks`, with the same metrics in the same order: one all-reduce for all sums, one for all maxima and
// one for all minima, in fp64. Of CountedBy::kSample those ranks count whose coordinate on an axis "cp" is 0.
// Afterwards the accumulators of each metric hold the updates of all ranks, until reset(); NaN of a rank is NaN on all.
// On CUDA it runs on the current stream, which may be another than that of the updates if it waits for them, and the
// host does not wait. Updates after compute() and reset() are of the next time, even if the device has not reduced yet.
void reduce_metrics(const std::vector<Metric*>& metrics, const DeviceMesh& ranks);

// Returns whether this rank's updates of the accumulator are reduced, and saved in checkpoints: false for copies of
// those of another rank (CountedBy).
[[nodiscard]] bool counts_here(const Accumulator& accumulator, const DeviceMesh& ranks);

}  // namespace d9d
