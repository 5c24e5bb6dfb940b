#include "tests/pipelining/random_pipelines.h"

#include <random>

#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d::test {

rc::Gen<PipelineScheduleConfig> random_schedule() {
  return rc::gen::exec([] {
    const auto num_stages_per_rank = *rc::gen::inRange<std::int64_t>(1, 5);
    const auto depth = *rc::gen::element(OneFOneBDepth::kDouble, OneFOneBDepth::kClassic);
    return *rc::gen::element<PipelineScheduleConfig>(GPipeScheduleConfig{},
                                                     LoopedBfsScheduleConfig{num_stages_per_rank},
                                                     OneFOneBScheduleConfig{num_stages_per_rank, false, depth},
                                                     OneFOneBScheduleConfig{num_stages_per_rank, true, depth},
                                                     ZeroBubbleVScheduleConfig{}, DualPipeVScheduleConfig{});
  });
}

rc::Gen<PipelineProgram> random_pipeline() {
  return rc::gen::exec([] {
    const auto config = *random_schedule();
    const auto num_ranks = *rc::gen::inRange<std::int64_t>(1, 6);
    auto num_microbatches = *rc::gen::inRange<std::int64_t>(1, 15);
    if (std::holds_alternative<DualPipeVScheduleConfig>(config)) num_microbatches += 2 * num_ranks - 1;
    return build_compute_program(schedule_of(config), num_ranks, num_microbatches);
  });
}

PipelineCosts drawn_costs(std::int64_t num_stages, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int largest) { return std::uniform_int_distribution(1, largest)(random) / 64.0; };
  PipelineCosts costs{.link = {.latency = draw(8), .time = draw(24)}};
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    const double input = draw(256);
    const double weight = draw(256);
    costs.stages.push_back({.forward = draw(256),
                            .backward = input + weight,
                            .backward_input = input,
                            .backward_weight = weight,
                            .activation_bytes = draw(256),
                            .deferred_bytes = draw(256),
                            .resident_bytes = draw(256)});
  }
  return costs;
}

rc::Gen<PipelineCosts> random_costs(std::int64_t num_stages) {
  return rc::gen::map(rc::gen::arbitrary<std::uint32_t>(),
                      [=](std::uint32_t seed) { return drawn_costs(num_stages, seed); });
}

}  // namespace d9d::test
