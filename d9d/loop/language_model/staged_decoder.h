// Makes a TokenModel for generate() from a decoder in pipeline stages. Each token takes one forward through all stages,
// on the ranks that trained them.
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

// Collective over the ranks of a pipeline. Returns a model that runs these stages as one decoder. context: borrowed.
// stages: the stages of this rank, in increasing order. Throws ConfigError if a stage is no DecoderForCausalLM or
// belongs to another rank, and what the constructor of PipelineExecutor throws.
[[nodiscard]] std::unique_ptr<TokenModel> staged_decoder(const DistContext& context, const StagePlacement& placement,
                                                         const std::vector<std::shared_ptr<Module>>& stages,
                                                         const StageLinksConfig& links = {});

}  // namespace d9d
