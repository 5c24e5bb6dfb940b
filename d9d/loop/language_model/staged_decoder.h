// A decoder in pipeline stages as a TokenModel for generate(): each token takes one forward through all stages, on the
// ranks where training has them.
//
// Example
//   const auto decoder = staged_decoder(context, trainer.placement(), trainer.stages());
//   generate(*decoder, prompt,                                                  // on all ranks
//            {.num_tokens = 20,
//             .sequence_ranks = context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}),
//             .ranks = context.mesh(MeshDomain::kFlat)});
#pragma once

#include <memory>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/models/decoder/token_model.h"
#include "d9d/pipelining/executor/stage_links.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

// Collective over the ranks of a pipeline. context: borrowed. stages: those of this rank, in increasing order; a model
// in one piece is one. Throws ConfigError for a stage that is no DecoderForCausalLM or not one of this rank's, and as
// PipelineExecutor.
[[nodiscard]] std::unique_ptr<TokenModel> staged_decoder(const DistContext& context, const StagePlacement& placement,
                                                         const std::vector<std::shared_ptr<Module>>& stages,
                                                         const StageLinksConfig& links = {});

}  // namespace d9d
