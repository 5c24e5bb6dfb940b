// Random pipelines and costs for property tests.
#pragma once

#include <cstdint>

#include <rapidcheck.h>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/program/pipeline_program.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace d9d::test {

// Any schedule that trains, with 1 to 4 stages a rank if the schedule allows several numbers.
[[nodiscard]] rc::Gen<PipelineScheduleConfig> random_schedule();

// Computations of any schedule, 1 to 5 ranks, 1 to 14 microbatches (as many as the schedule needs at least).
[[nodiscard]] rc::Gen<PipelineProgram> random_pipeline();

// Between 0.125 and 4 for computations, less for messages; multiples of 1/64, so that sums are exact.
[[nodiscard]] rc::Gen<PipelineCosts> random_costs(std::int64_t num_stages);
[[nodiscard]] PipelineCosts drawn_costs(std::int64_t num_stages, std::uint32_t seed);

}  // namespace d9d::test
