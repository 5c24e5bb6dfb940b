// Tests whether a training program gives the same numbers on any layout: trains it on one rank and on a mesh whose
// ranks are threads, and compares.
//
// Example
//   const auto train = [](const d9d::DistContext& context) {
//     ...                                                    // a Trainer, or a loop of one's own
//     return testing::Trained{.losses = losses, .parameters = trainer.module().full_state_dict()};
//   };
//   EXPECT_EQ(testing::layout_difference({.data_parallel_shard = 2}, train), "");
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/testing/ranks.h"

namespace d9d::testing {

// The result of training. Only that of the main process is compared.
struct Trained {
  std::vector<double> losses = {};                    // of each step
  std::map<std::string, at::Tensor> parameters = {};  // whole, after the last step
};

struct LayoutOptions {
  // Bound on the largest difference, relative to the largest absolute value of a tensor. The default is for float64,
  // where it exceeds rounding errors but not the effect of a wrong term.
  double tolerance = 1e-9;
  RankOptions ranks = {};
};

// `train` is called on each rank; it builds the job with the context's layout, and reads the same samples in each step
// of all runs. Returns one line for each difference: "" if there is none.
[[nodiscard]] std::string layout_difference(const DeviceMeshParameters& mesh,
                                            const std::function<Trained(const DistContext&)>& train,
                                            const LayoutOptions& options = {});

}  // namespace d9d::testing
