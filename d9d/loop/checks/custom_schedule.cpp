#include "d9d/loop/checks/custom_schedule.h"

#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/fnv1a.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {

void refuse_two_schedules(const std::optional<PipelineSchedule>& own, const PipelineScheduleConfig& configured) {
  const auto keys = write_record(configured);
  D9D_CHECK(!own || keys == write_record(PipelineScheduleConfig{}), ConfigError,
            "[loop::trainer] expected one pipeline schedule, got trainer.pipelining.schedule = ", keys.dump(), " and '",
            own->name, "' of TrainerParts::pipeline_schedule. Leave one of them out.");
}

PipelineSchedule as_trained(const PipelineSchedule& given, std::int64_t num_ranks) {
  const StagePlacement placement = placement_of(given, num_ranks);
  PipelineSchedule schedule{.name = given.name};
  schedule.placement = [placement](std::int64_t) { return placement; };
  schedule.order = [given](const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
    RankProgram program = given.order(stages, rank, num_microbatches);
    D9D_CHECK(program.empty() || PipelineProgram{.ranks = {program}}.has_backward(), ConfigError,
              "[loop::trainer] expected a pipeline schedule with a backward of each forward, got '", given.name,
              "' without one on rank ", rank, " of the pipeline for ", num_microbatches, " microbatches.");
    if (stages.num_stages() > 1) return program;
    (void)build_program(given, stages.num_ranks(), num_microbatches);
    return schedule_of(GPipeScheduleConfig{}).order(stages, rank, num_microbatches);
  };
  return schedule;
}

void check_equal_order(const DeviceMesh& ranks, const PipelineSchedule& schedule, std::int64_t num_pipeline_ranks,
                       std::int64_t num_microbatches) {
  const std::string text = to_text(build_compute_program(schedule, num_pipeline_ranks, num_microbatches));
  const nlohmann::json own{{"microbatches", num_microbatches}, {"hash", fnv1a(text)}};
  const std::vector<nlohmann::json> all = all_gather_object(own, ranks);
  std::map<std::int64_t, std::size_t> first;  // the first rank with each number of microbatches
  for (std::size_t i = 0; i < all.size(); ++i) {
    // An entry without a hash is from a rank that compares transfers now, since it did this check in an earlier step.
    D9D_CHECK(all[i].contains("hash"), StateError,
              "[loop::trainer] expected as many microbatches on all ranks of a pipeline, got ", num_microbatches,
              " and, on rank ", ranks.ranks()[i], ", ", all[i].value("microbatches", std::int64_t{0}),
              ". Divide samples by context.data_parallel_rank(), which these ranks share.");
    const auto [found, is_first] = first.try_emplace(all[i].at("microbatches").get<std::int64_t>(), i);
    D9D_CHECK(all[i].at("hash") == all[found->second].at("hash"), ConfigError, "[loop::trainer] expected '",
              schedule.name, "' to give all ranks the same program of ", found->first,
              " microbatches, got another on rank ", ranks.ranks()[i], " than on rank ", ranks.ranks()[found->second],
              ". Let its order depend on its arguments alone, not on what a rank has measured.");
  }
}

}  // namespace d9d
