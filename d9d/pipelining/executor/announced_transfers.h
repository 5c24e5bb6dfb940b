// The transfers that a stage announces for one of its boundaries before a step runs.
#pragma once

#include <cstdint>
#include <string>

#include "d9d/pipelining/executor/pipeline_stage.h"

namespace d9d {

struct AnnouncedTransfers {
  std::string text;                // "from microbatch 0 on Float [2, 8], from microbatch 3 on Float [2, 6]"
  std::int64_t largest_bytes = 0;  // bytes of the largest message; messages of gradients are no larger
};

[[nodiscard]] AnnouncedTransfers announced_transfers(const PipelineStage& stage, StageBoundary boundary,
                                                     std::int64_t num_microbatches);

}  // namespace d9d
