// What steps of a pipeline take: each as long as on the rank on which it takes longest.
//
// Example
//   const std::vector<double> steps = longest_of_ranks(seconds, pipeline);
//   steps[steps.size() / 2];                                // the median
#pragma once

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"

namespace benchmarks {

// Collective over `ranks`, with as many steps on each. Sorted.
inline std::vector<double> longest_of_ranks(std::vector<double> steps, const d9d::DeviceMesh& ranks) {
  for (const nlohmann::json& of_rank : d9d::all_gather_object(steps, ranks)) {
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = std::max(steps[i], of_rank[i].get<double>());
  }
  std::ranges::sort(steps);
  return steps;
}

}  // namespace benchmarks
