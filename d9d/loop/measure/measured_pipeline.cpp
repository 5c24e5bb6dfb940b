#include "d9d/loop/measure/measured_pipeline.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/rng/default_generators.h"
#include "d9d/pipelining/simulator/choose_schedule.h"

namespace d9d {
namespace {

void take_larger(StageCosts& to, const StageCosts& more) {
  for (const auto cost :
       {&StageCosts::forward, &StageCosts::backward, &StageCosts::backward_input, &StageCosts::backward_weight,
        &StageCosts::activation_bytes, &StageCosts::deferred_bytes, &StageCosts::resident_bytes}) {
    to.*cost = std::max(to.*cost, more.*cost);
  }
}

}  // namespace

MeasuredPipeline merged(const std::vector<RankMeasurement>& ranks) {
  MeasuredPipeline result{.composed_overlap = ranks.front().composed_overlap};
  for (const RankMeasurement& rank : ranks) {
    result.num_microbatches = std::max(result.num_microbatches, rank.num_microbatches);
    result.link.latency = std::max(result.link.latency, rank.link.latency);
    result.link.time = std::max(result.link.time, rank.link.time);
    result.composed_overlap = std::min(result.composed_overlap, rank.composed_overlap);
    if (rank.device_bytes) {
      result.device_bytes = std::min(result.device_bytes.value_or(*rank.device_bytes), *rank.device_bytes);
    }
    for (const auto& [num_stages, stage, costs] : rank.stages) {
      auto& all = result.stages[num_stages];
      all.resize(static_cast<std::size_t>(num_stages), ModelCosts::kNoCosts);
      take_larger(all.at(static_cast<std::size_t>(stage)), costs);
    }
  }
  return result;
}

MeasuredPipeline measure_pipeline(const UnbuiltJob& job, const std::set<std::int64_t>& nums_of_stages_per_rank) {
  install_checkpoint_engine();
  RankMeasurement own{.num_microbatches =
                          num_microbatches_to_measure(job, "auto_schedule", "Name a schedule instead of auto.")};
  const DefaultGenerators generators(job.context.device());
  wait_for_all(job.context);  // ranks may be threads of one process, which share a generator
  std::vector<std::string> refusals;
  std::optional<LayerDistribution> layers;
  for (const std::int64_t v : nums_of_stages_per_rank) {
    try {
      MeasuredSplit cut(job, StagePlacement::loop(job.context.mesh(MeshDomain::kRegular).axis_size("pp"), v));
      if (const auto refusal = cut.build()) {
        refusals.push_back(*refusal);
        continue;
      }
      layers = cut.layers();
      cut.measure(own);
    } catch (const std::exception&) {
      add_error_place(
          cat("while the stages of a cut into ", v, " a rank were measured for trainer.pipelining.schedule = auto"));
      throw;
    }
    forget_measurement(job.context.device());
  }
  wait_for_all(job.context);
  generators.restore();
  D9D_CHECK(!own.stages.empty(), ConfigError, "[loop::auto_schedule] expected a model that can be cut into ",
            "stages, got one that refuses every number of them: ", refusals.front());
  std::vector<RankMeasurement> ranks;
  const nlohmann::json written(write_record(own));
  for (const nlohmann::json& each : all_gather_object(written, job.context.mesh(MeshDomain::kBatch))) {
    ranks.push_back(parse_record<RankMeasurement>(Json(each)));
  }
  MeasuredPipeline measured = merged(ranks);
  measured.layers = layers;
  measured.refusals = std::move(refusals);
  return measured;
}

}  // namespace d9d
