#include "d9d/pipelining/api/stage_info.h"

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::int64_t num_layers_of_stage(const LayerDistribution& distribution, const PipelineStageInfo& stage) {
  const std::int64_t total =
      distribution.num_layers + distribution.num_virtual_layers_pre + distribution.num_virtual_layers_post;
  std::int64_t count = total / stage.num_stages + (stage.current_stage < total % stage.num_stages ? 1 : 0);
  if (stage.is_first()) count -= distribution.num_virtual_layers_pre;
  if (stage.is_last()) count -= distribution.num_virtual_layers_post;
  D9D_CHECK(count > 0, ConfigError, "[pipelining::stage] expected at least one layer a stage, got ", count,
            " for stage ", stage.current_stage, " of ", stage.num_stages, " with ", distribution.num_layers,
            " layers and ", distribution.num_virtual_layers_pre, " + ", distribution.num_virtual_layers_post,
            " virtual ones. Use fewer stages (in a job mesh.pipeline_parallel times num_stages_per_rank of ",
            "trainer.pipelining.schedule, of V schedules twice), fewer virtual layers, or more layers.");
  return count;
}

}  // namespace

LayerRange layers_of_stage(const LayerDistribution& distribution, const PipelineStageInfo& stage) {
  D9D_CHECK(stage.num_stages >= 1 && stage.current_stage >= 0 && stage.current_stage < stage.num_stages, ConfigError,
            "[pipelining::stage] expected a stage in [0, ", stage.num_stages, "), got ", stage.current_stage, ".");
  LayerRange range, own;
  for (std::int64_t i = 0; i < stage.num_stages; ++i) {
    range.begin = range.end;
    range.end += num_layers_of_stage(distribution, {.num_stages = stage.num_stages, .current_stage = i});
    if (i == stage.current_stage) own = range;
  }
  return own;
}

}  // namespace d9d
