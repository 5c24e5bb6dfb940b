// A pipeline schedule of one's own: 1F1B with split backward that keeps at most `limit` microbatches on any rank.
//
// Example
//   Trainer<Types> trainer(context, config, {..., .pipeline_schedule = limited_schedule(2)});
#pragma once

#include <algorithm>
#include <cstdint>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

// In which order one rank computes its only stage. Weight gradients wait until the rank has nothing better to do.
inline d9d::RankProgram limited_order(std::int64_t rank, std::int64_t num_ranks, std::int64_t num_microbatches,
                                      std::int64_t limit) {
  const std::int64_t num_ahead = std::min({limit, num_ranks - rank, num_microbatches});
  const d9d::StageIndex stage{rank};
  d9d::RankProgram program;
  std::int64_t num_weights = 0;
  for (std::int64_t m = 0; m < num_ahead; ++m) program.emplace_back(d9d::ForwardAction{stage, {m}});
  for (std::int64_t m = 0; m < num_microbatches; ++m) {
    program.emplace_back(d9d::BackwardInputAction{stage, {m}});
    if (m + num_ahead >= num_microbatches) continue;
    while (m + num_ahead + 1 - num_weights > limit) {
      program.emplace_back(d9d::BackwardWeightAction{stage, {num_weights++}});
    }
    program.emplace_back(d9d::ForwardAction{stage, {m + num_ahead}});
  }
  while (num_weights < num_microbatches) program.emplace_back(d9d::BackwardWeightAction{stage, {num_weights++}});
  return program;
}

inline d9d::PipelineSchedule limited_schedule(std::int64_t limit) {
  return {.name = d9d::cat("limited to ", limit),
          .placement = [](std::int64_t num_ranks) { return d9d::StagePlacement::loop(num_ranks, 1); },
          .order =
              [limit](const d9d::StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
                return limited_order(rank, stages.num_ranks(), num_microbatches, limit);
              }};
}
