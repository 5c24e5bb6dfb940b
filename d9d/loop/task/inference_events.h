// The events of an inference job, in the order in which they are triggered. docs/inference.md has a table of them.
#pragma once

#include "d9d/loop/task/event_bus.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

struct InferenceReady {};
struct InferenceStep {
  const JobSchedule& schedule;  // current_step() is the index of the running pack
  StopRequest& stop;
};
struct InferenceFinished {};

// Triggered when all handlers are registered and nothing is built yet.
inline constexpr Event<ConfigurationStarted> kInferenceConfigStarted{"inference.configuration.start"};
// Triggered when the data stream is built. Batch: the task's batch type.
template <class Batch>
inline constexpr Event<DataStreamReady<Batch>> kInferenceDataStreamReady{"inference.configuration.data_stream"};
// Triggered when the stages have their values.
inline constexpr Event<ModelStagesReady> kInferenceModelStagesReady{"inference.configuration.model_stages"};
// Triggered if the job continues, when the position in the data and the state of the task are loaded.
inline constexpr Event<CheckpointEvent> kInferenceCheckpointLoaded{"inference.checkpoint.loaded"};
// Triggered before the first pack.
inline constexpr Event<InferenceReady> kInferenceReady{"inference.ready"};
// Triggered before a pack is read, and when its outputs are processed; current_step() is still this pack.
inline constexpr Event<InferenceStep> kInferenceStepPre{"inference.step.pre"};
inline constexpr Event<InferenceStep> kInferenceStepPost{"inference.step.post"};
// Triggered before and after the forwards of a pack.
inline constexpr Event<InferenceStep> kInferenceForwardPre{"inference.forward.pre"};
inline constexpr Event<InferenceStep> kInferenceForwardPost{"inference.forward.post"};
// Triggered when a position is complete on disk.
inline constexpr Event<CheckpointEvent> kInferenceCheckpointSaved{"inference.checkpoint.saved"};
// Triggered after the task's finalize, also when the job was stopped.
inline constexpr Event<InferenceFinished> kInferenceFinished{"inference.finished"};

}  // namespace d9d
