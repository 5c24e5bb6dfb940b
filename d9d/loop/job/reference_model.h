// Builds the reference model of a task that has one (AnyTask::reference).
//
//   reference            model of the forwards                                      refused
//   without_adapters     the stages that are trained, their adapters taken off      what changes more than adapters
//   frozen_copy          stages of its own, with the values that a new job has      -
//   auto                 the first if training changes adapters alone, and they
//                        begin at 0: neither source_adapters nor source_checkpoint
//                        has values of them; else the second
//
// What changes beside adapters is a parameter that is trained, or a floating-point buffer of the state, such as the
// bias that balances experts. Both work in every layout, in evaluations, and after a resume: the reference is the model
// as the job began, which is built again from source_checkpoint or, without it, from the job's seed; a job that goes on
// with another is refused. trainer.cuda_graph and schedule = auto are refused.
//
// Example
//   check_reference(given, task);                                          // before the model is built
//   const auto reference = build_reference(job, *module);
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"

namespace d9d {

// Local. Throws ConfigError if the task has a reference with settings with which none is built.
void check_reference(const TrainerConfig& config, const AnyTask& task);

// All are borrowed. initialize: the binding's initialize_stage().
struct ReferenceParts {
  const DistContext& context;
  const TrainerConfig& config;
  const AnyTask& task;
  AnyModelProvider& provider;
  const StagePlacement& placement;
  const RandomClockPtr& clock;  // of the model that is trained
  const std::function<std::shared_ptr<AnyModelStage>(const PipelineStageInfo&)>& initialize;
  const std::optional<SavedCheckpoint>& saved;  // from which the job goes on
};

// Collective over the job. module: all stages of this rank that are trained, as they are when the optimiser is built.
// Returns none for a task without reference. Throws ConfigError for kWithoutAdapters of a model without adapters, or of
// one in which training changes something else, and for a job that goes on with another source than it began with.
[[nodiscard]] std::optional<ReferenceModel> build_reference(const ReferenceParts& parts, const Module& module);

}  // namespace d9d
