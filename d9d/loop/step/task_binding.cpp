#include "d9d/loop/step/task_binding.h"

#include "d9d/base/check.h"

namespace d9d {

TaskBinding::~TaskBinding() = default;

void check_built(bool is_built, const char* function, const char* what) {
  D9D_CHECK(is_built, StateError, "[loop::trainer] expected ", function, " to return ", what, ", got null.");
}

void check_can_be_cut(const PipelineStageInfo& stage, bool has_transfer, bool is_part) {
  if (stage.num_stages == 1) return;
  D9D_CHECK(has_transfer, ConfigError, "[loop::trainer] expected a task with Types::Transfer for ", stage.num_stages,
            " pipeline stages, got one without. Add `using Transfer = ...;`, what a stage hands to the next, or set "
            "mesh.pipeline_parallel to 1 and a schedule of one stage a rank.");
  D9D_CHECK(
      is_part, ConfigError, "[loop::trainer] expected a model that can be cut into ", stage.num_stages,
      " pipeline stages, got one that cannot. It needs stage_transfer(), and a forward that takes Types::Transfer "
      "and returns it (d9d/loop/task/model_stage.h); or set mesh.pipeline_parallel to 1 and a schedule of one "
      "stage a rank.");
}

}  // namespace d9d
