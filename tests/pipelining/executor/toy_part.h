// A rank's part of a toy network, checks of its gradients and of its order, and the settings in which ranks run.
//
// Example
//   run_ranks(setting.backend, setting.num_ranks, [&](World& world) {
//     const DistContext context = context_of(world);
//     Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 4}, setting.links());
//     part.run();
//   });
#pragma once

#include <algorithm>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/pipelining/executor/pipeline_executor.h"

#include "tests/pipelining/executor/toy_stages.h"
#include "tests/support/ranks.h"

namespace d9d::test {

inline DistContext context_of(World& world) {
  return DistContext({.mesh = {.pipeline_parallel = world.size()},
                      .world = borrowed(world),
                      .local_rank = world.rank(),
                      .log_sink = [](std::string_view) {}});
}

// A rank's part of the network.
struct Part {
  Part(const DistContext& context, const PipelineScheduleConfig& config, ToyShape shape,
       const StageLinksConfig& links = {})
      : Part(context, schedule_of(config), shape, links) {}
  Part(const DistContext& context, PipelineSchedule schedule, ToyShape shape, const StageLinksConfig& links = {})
      : executor(context, std::move(schedule), links), network([&] {
          shape.num_stages = executor.placement().num_stages();
          shape.device = context.device();
          return shape;
        }()) {
    for (const StageIndex stage : executor.stages()) stages.push_back(std::make_unique<ToyStage>(network, stage));
  }
  void run() { run(network.shape.num_microbatches); }
  void run(std::int64_t num_microbatches) {
    std::vector<PipelineStage*> borrowed_stages;
    for (const auto& stage : stages) borrowed_stages.push_back(stage.get());
    executor.run(borrowed_stages, num_microbatches);
  }

  PipelineExecutor executor;
  ToyNetwork network;
  std::vector<std::unique_ptr<ToyStage>> stages;
};

// Tolerance: the gradients of a layer are summed over microbatches in another order than on one rank.
inline constexpr double kRounding = 1e-13;

inline void expect_gradients_of_one_piece(const Part& part) {
  ToyNetwork whole(part.network.shape);
  whole.run_in_one_piece();
  const auto& own = part.executor.stages();
  for (std::int64_t i = 0; i < whole.shape.num_stages; ++i) {
    const at::Tensor& grad = part.network.weights[static_cast<std::size_t>(i)].grad();
    const at::Tensor& expected = whole.weights[static_cast<std::size_t>(i)].grad();
    const bool is_own = std::ranges::find(own, StageIndex{i}) != own.end();
    ASSERT_EQ(grad.defined(), is_own && expected.defined()) << "layer " << i;
    if (!grad.defined()) continue;
    EXPECT_TRUE(at::allclose(grad, expected, kRounding, kRounding)) << "layer " << i;
  }
}

// Splits composed computations into single ones in the order in which the host issues them on a GPU: the backward
// first, so that its microbatch is no longer live when the forward begins.
inline RankProgram as_issued(const RankProgram& program) {
  RankProgram issued;
  for (const Action& action : program) {
    const auto parts = compute_parts(action);
    if (parts.empty()) issued.push_back(action);
    issued.insert(issued.end(), parts.rbegin(), parts.rend());
  }
  return issued;
}

struct Setting {
  RankBackend backend;
  std::int64_t num_ranks;
  ExchangeMethod messages = ExchangeMethod::kCopyEngine;
  friend void PrintTo(const Setting& setting, std::ostream* out) {
    *out << to_string(setting.backend) << " " << setting.num_ranks
         << (setting.messages == ExchangeMethod::kCopyEngine ? " copies" : " exchange");
  }
  [[nodiscard]] StageLinksConfig links(std::int64_t num_slots = 2) const {
    return {.num_inbox_slots = num_slots, .method = messages};
  }
  // The number of outputs of earlier forwards that may still exist, summed over all forwards. Gloo reads the memory of
  // the last message until the receiver has it; copy engines read as many messages as there are receive buffers.
  [[nodiscard]] std::int64_t num_kept(std::int64_t num_microbatches, std::int64_t num_slots = 2) const {
    const bool are_copied = backend == RankBackend::kNccl && messages == ExchangeMethod::kCopyEngine;
    const std::int64_t at_once = are_copied ? num_slots : backend == RankBackend::kGloo ? 1 : 0;
    std::int64_t sum = 0;
    for (std::int64_t before = 0; before < num_microbatches; ++before) sum += std::min(before, at_once);
    return sum;
  }
};

}  // namespace d9d::test
