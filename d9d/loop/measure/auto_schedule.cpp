#include "d9d/loop/measure/auto_schedule.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/layer_costs.h"

namespace d9d {
namespace {

bool is_allowed(const AutoScheduleConfig& config, const PipelineScheduleConfig& schedule) {
  const std::string_view name = std::visit([](const auto& one) { return one.kTag.value; }, schedule);
  return config.schedules.empty() ||
         std::ranges::any_of(config.schedules, [&](ScheduleKind kind) { return enum_name(kind) == name; });
}

std::vector<PipelineScheduleConfig> allowed_schedules(const AutoScheduleConfig& config) {
  std::vector<PipelineScheduleConfig> allowed = training_schedules(config.max_stages_per_rank);
  std::erase_if(allowed, [&](const auto& schedule) { return !is_allowed(config, schedule); });
  D9D_CHECK(!allowed.empty(), ConfigError,
            "[loop::auto_schedule] expected schedules of at most max_stages_per_rank = ", config.max_stages_per_rank,
            " stages a rank among trainer.pipelining.schedule.schedules, got none. Name others, or allow two stages.");
  return allowed;
}

// Returns the schedule that a resumed job chose before; none if the keys of `auto` or the number of pipeline ranks have
// changed.
std::optional<PipelineScheduleConfig> chosen_before(const UnbuiltJob& job,
                                                    const std::optional<SavedCheckpoint>& saved) {
  if (!saved || !saved->values().contains("auto_schedule")) return std::nullopt;
  const bool is_same =
      value_of(*saved, "auto_schedule") == auto_schedule_of(job.config) &&
      value_of(*saved, "mesh").at("pipeline_parallel") == job.context.mesh_parameters().pipeline_parallel;
  if (!is_same) return std::nullopt;
  return parse_record<PipelineScheduleConfig>(value_of(*saved, "trainer").at("pipelining").at("schedule"),
                                              {.source = (saved->folder() / "manifest.json").string()});
}

// Collective over the job. Returns why a rank cannot run its microbatches of the first step with this schedule; none if
// all ranks can.
std::optional<std::string> refusal_of(const UnbuiltJob& job, const PipelineScheduleConfig& schedule) {
  nlohmann::json refusal;
  const MicrobatchPack* const pack = job.packs.peek();
  const std::int64_t num_microbatches = pack == nullptr ? 0 : std::ssize(*pack);
  try {
    if (num_microbatches > 0) {
      (void)build_compute_program(schedule_of(schedule), job.context.mesh_parameters().pipeline_parallel,
                                  num_microbatches);
    }
  } catch (const ConfigError& error) {
    refusal = error_line(error);
  }
  for (const nlohmann::json& each : all_gather_object(refusal, job.context.mesh(MeshDomain::kBatch))) {
    if (!each.is_null()) return each.get<std::string>();
  }
  return std::nullopt;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string table_of(const std::vector<StageCosts>& stages) {
  constexpr double kMilli = 1e3, kMiB = 1024.0 * 1024.0;
  std::ostringstream out;
  out << std::fixed << std::setprecision(3);
  const auto row = [&](const auto& name, const auto&... values) {
    out << "  " << std::left << std::setw(6) << name << std::right;
    (..., (out << std::setw(12) << values));
    out << '\n';
  };
  row("stage", "F ms", "B ms", "I ms", "W ms", "to B MiB", "to W MiB", "own MiB");
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageCosts& stage = stages[i];
    row(i, stage.forward * kMilli, stage.backward * kMilli, stage.backward_input * kMilli,
        stage.backward_weight * kMilli, stage.activation_bytes / kMiB, stage.deferred_bytes / kMiB,
        stage.resident_bytes / kMiB);
  }
  return out.str();
}

void log_choice(const Logger& log, const MeasuredPipeline& measured, const std::vector<StageCosts>& stages,
                const ScheduleChoice& choice, double seconds) {
  log.info("trainer.pipelining.schedule = auto: measured the model in ", measured.stages.size(),
           " numbers of stages within ", seconds, " s. In ", stages.size(), " stages a microbatch takes, and keeps,");
  for (const std::string& line : lines_of(table_of(stages))) log.info(line);
  log.info("a message takes ", measured.link.time, " s and arrives ", measured.link.latency,
           " s later, composed computations hide ", measured.composed_overlap,
           " of the shorter one. Simulated, in seconds and bytes that a rank keeps:");
  for (const std::string& line : lines_of(choice.explanation)) log.info(line);
  for (const std::string& refusal : measured.refusals) log.info("Not tried: ", refusal);
}

}  // namespace

ScheduleChoice choose_schedule(const AutoScheduleConfig& config, std::int64_t num_ranks,
                               const MeasuredPipeline& measured) {
  MicrobatchOption option{.count = measured.num_microbatches, .stages = measured.stages};
  ScheduleRequest request{.num_ranks = num_ranks,
                          .link = measured.link,
                          .composed_overlap = measured.composed_overlap,
                          .schedules = allowed_schedules(config)};
  if (measured.layers) {
    request.num_virtual_layers_pre = measured.layers->num_virtual_layers_pre;
    request.num_virtual_layers_post = measured.layers->num_virtual_layers_post;
    if (auto model = layer_costs(measured.stages, *measured.layers)) option.model = std::move(*model);
  }
  request.max_bytes = config.max_bytes ? static_cast<double>(*config.max_bytes) : measured.device_bytes;
  request.microbatches.push_back(std::move(option));
  return with_error_place("in trainer.pipelining.schedule", [&] { return choose_schedule(request); });
}

TrainerConfig with_chosen_schedule(const UnbuiltJob& job, const std::optional<SavedCheckpoint>& saved) {
  TrainerConfig config = job.config;
  const auto* const automatic = std::get_if<AutoScheduleConfig>(&job.config.pipelining.schedule);
  if (automatic == nullptr) return config;
  config.pipelining.schedule = OneFOneBScheduleConfig{};
  const std::int64_t num_ranks = job.context.mesh(MeshDomain::kRegular).axis_size("pp");
  if (num_ranks == 1) return config;
  const auto before = chosen_before(job, saved);
  const auto refusal = before && !job.schedule.is_done() ? refusal_of(job, *before) : std::nullopt;
  if (before && job.context.is_main_process()) {
    const Logger& log = job.context.log();
    const std::string name = schedule_of(*before).name;
    if (refusal) {
      log.warning("measures anew: auto chose ", name, " before, which refuses: ", *refusal);
    } else {
      log.info("continues with ", name, ", which auto chose before");
    }
  }
  if (before && !refusal) {
    config.pipelining.schedule = *before;
    return config;
  }
  if (job.schedule.is_done()) return config;  // there is nothing to train
  const auto begin = std::chrono::steady_clock::now();
  std::set<std::int64_t> nums_of_stages_per_rank;
  for (const PipelineScheduleConfig& schedule : allowed_schedules(*automatic)) {
    nums_of_stages_per_rank.insert(schedule_of(schedule).placement(1).num_stages());
  }
  const MeasuredPipeline measured = measure_pipeline(job, nums_of_stages_per_rank);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const ScheduleChoice choice = choose_schedule(*automatic, num_ranks, measured);
  config.pipelining.schedule = choice.best.schedule;
  const nlohmann::json own(write_record(config.pipelining));
  for (const nlohmann::json& other : all_gather_object(own, job.context.mesh(MeshDomain::kBatch))) {
    D9D_ASSERT(other == own, "ranks chose ", own.dump(), " and ", other.dump(), " from the same costs");
  }
  if (!job.context.is_main_process()) return config;
  const std::int64_t num_stages = schedule_of(choice.best.schedule).placement(num_ranks).num_stages();
  const std::vector<StageCosts>& stages = measured.stages.at(num_stages);
  log_choice(job.context.log(), measured, stages, choice, seconds);
  if (automatic->costs_file) {
    const PipelineCosts costs{.stages = stages, .link = measured.link, .composed_overlap = measured.composed_overlap};
    write_file_atomically(*automatic->costs_file, write_record(costs).dump(2) + "\n");
  }
  return config;
}

nlohmann::ordered_json auto_schedule_of(const TrainerConfig& config) {
  const auto* const automatic = std::get_if<AutoScheduleConfig>(&config.pipelining.schedule);
  if (automatic == nullptr) return nullptr;
  AutoScheduleConfig asked = *automatic;
  asked.costs_file.reset();  // it does not affect the choice
  return write_record(asked);
}

}  // namespace d9d
