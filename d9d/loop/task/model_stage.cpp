#include "d9d/loop/task/model_stage.h"

#include "d9d/base/check.h"

namespace d9d::detail {

void refuse_other_end() {
  throw StateError(
      "[loop::model_stage] expected forward to return Types::Output on the last stage of a pipeline and "
      "Types::Transfer on every other stage, got the other type. Build each stage from the PipelineStageInfo that "
      "initialize_model_stage() "
      "gets: is_last() says which it returns, layers_of_stage() which layers it has.");
}

}  // namespace d9d::detail
