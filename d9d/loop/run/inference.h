// Runs a model over data without training it, on any mesh: scores, perplexities, embeddings. A job that is killed
// continues where its last saved position is.
//
// Example
//   Inference<MyTypes> inference(context, config.inference, {.task = task, .model = model, .data = data});
//   if (inference.infer() == TrainingOutcome::kFinished) std::cout << task.result() << '\n';
#pragma once

#include <memory>
#include <optional>

#include "d9d/loop/run/inference_base.h"
#include "d9d/loop/step/inference_binding.h"
#include "d9d/loop/task/inference_events.h"
#include "d9d/loop/task/inference_task.h"
#include "d9d/loop/task/providers.h"

namespace d9d {

// The job keeps references to the parts: they must outlive it.
template <class Types>
struct InferenceParts {
  InferenceTask<Types>& task;
  ModelProvider<Types>& model;
  DataProvider<BatchOf<Types>>& data;
  // Where stages of the model are placed, on as many ranks as mesh.pipeline_parallel; none: one stage a rank.
  std::optional<StagePlacement> placement = std::nullopt;
};

// The implementation is in InferenceBase, which is compiled once for all tasks.
template <class Types>
class Inference : public InferenceBase {
 public:
  // Collective. Builds event handlers, data and model. If inference.checkpointing.save_dir has a position, continues
  // there.
  Inference(const DistContext& context, const InferenceConfig& config, const InferenceParts<Types>& parts)
      : InferenceBase(context, config, {.task = parts.task, .model = parts.model, .placement = parts.placement},
                      std::make_unique<TypedInference<Types>>(parts.task, parts.model, parts.data)) {}
};

}  // namespace d9d
