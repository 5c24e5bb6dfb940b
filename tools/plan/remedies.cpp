#include "tools/plan/remedies.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "d9d/base/check.h"
#include "d9d/base/config/override.h"

#include "tools/plan/table.h"

namespace d9d::plan {
namespace {

// Keys that the job has already are asked for again, which then changes nothing and is left out.
std::vector<Remedy> candidates(const PlannedJob& planned) {
  const DeviceMeshParameters& mesh = planned.request.mesh;
  const auto mesh_key = [](const char* key, std::int64_t degree) { return cat("mesh.", key, "=", degree); };
  std::vector<Remedy> all = {
      {.overrides = {"model_provider.checkpointing=true"}, .note = "forward runs twice"},
      {.overrides = {R"(model_provider.checkpointing={"recompute": "all_but_attention"})"},
       .note = "forward runs twice but for attention"},
      {.overrides = {R"(model_provider.checkpointing={"recompute": "all", "offload": true})"},
       .note = "forward runs twice, inputs of layers wait in host memory"},
      {.overrides = {"model_provider.fsdp.reduce_on_last_microbatch=false"}, .note = "a reduction a microbatch"},
      {.overrides = {"model_provider.fsdp.reshard_after_forward=except_last"},
       .note = "a gather a forward and backward"},
      {.overrides = {"trainer.gradient_manager.grad_dtype=bfloat16"}, .note = "rounds each sum of gradients"},
      {.overrides = {R"(optimizer={"name": "stochastic_adamw", "lr": 1e-4, "state_dtype": "bfloat16"})",
                     "model_provider.dtype=bfloat16", "trainer.model_stage_factory.master_dtype=null"},
       .note = "moments in bfloat16"},
      {.overrides = {mesh_key("expert_parallel", 2 * mesh.expert_parallel)}, .note = "sends tokens to more ranks"}};
  using Degree = std::int64_t DeviceMeshParameters::*;
  constexpr std::tuple<const char*, Degree, const char*> kAxes[] = {
      {"data_parallel_shard", &DeviceMeshParameters::data_parallel_shard, "gathers parameters"},
      {"pipeline_parallel", &DeviceMeshParameters::pipeline_parallel, "has a bubble"},
      {"tensor_parallel", &DeviceMeshParameters::tensor_parallel, "communicates in each layer"},
      {"context_parallel_shard", &DeviceMeshParameters::context_parallel_shard, "exchanges keys and values"}};
  for (const auto& [name, degree, note] : kAxes) {
    all.push_back({.overrides = {mesh_key(name, 2 * mesh.*degree)}, .note = cat("twice the ranks; ", note)});
    for (const auto& [given, from] :
         {std::pair("data_parallel_replicate", &DeviceMeshParameters::data_parallel_replicate),
          std::pair("data_parallel_shard", &DeviceMeshParameters::data_parallel_shard)}) {
      if (mesh.*from % 2 != 0 || from == degree) continue;
      all.push_back({.overrides = {mesh_key(given, mesh.*from / 2), mesh_key(name, 2 * mesh.*degree)},
                     .note = cat("as many ranks; ", note)});
    }
  }
  if (mesh.pipeline_parallel > 1) {
    all.push_back({.overrides = {R"(trainer.pipelining.schedule={"schedule": "1f1b", "num_stages_per_rank": 1, )"
                                 R"("zero_bubble": false, "depth": "classic"})"},
                   .note = "at most a microbatch a rank that follows; d9d_pipeline_plot shows its bubble"});
  }
  return all;
}

}  // namespace

std::vector<Remedy> find_remedies(const Job& job, const PlannedJob& planned, const Options& options) {
  std::vector<Remedy> helpful;
  for (Remedy& each : candidates(planned)) {
    Job changed = job;
    try {
      for (const std::string& override : each.overrides) apply_override(changed.json, override);
      each.bytes = most_bytes(plan_job(changed, options));
    } catch (const Error&) {  // what the job refuses is no remedy
      continue;
    }
    if (each.bytes < most_bytes(planned)) helpful.push_back(std::move(each));
  }
  std::ranges::stable_sort(helpful, {}, &Remedy::bytes);
  return helpful;
}

}  // namespace d9d::plan
