// Next-token prediction as a training task.
//
// Example
//   LanguageModelTask task(context);
//   Trainer<LanguageModelTypes> trainer(context, config.trainer, {.task = task, ...});
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/loop/language_model/decoder_inputs.h"
#include "d9d/loop/task/task.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

struct LanguageModelState {
  at::Tensor num_predicted;  // scalar: number of labels other than kIgnoreIndex
  static constexpr auto fields() {
    return record<LanguageModelState>(field("num_predicted", &LanguageModelState::num_predicted));
  }
};

struct LanguageModelTypes {
  using Batch = TokenBatch;
  using Input = SequenceInput;
  using Transfer = SequenceTransfer;
  using Shared = DecoderForCausalLM::Shared;
  using Output = DecoderOutput<LanguageModellingHead>;
  using State = LanguageModelState;
};

// The loss of a microbatch is its mean cross-entropy, the weight its number of labels; the loss of a step is thus the
// mean over all labels. Under context parallelism each rank computes its own positions of each sequence. Logs the
// metric "num_predicted".
class LanguageModelTask : public TrainTask<LanguageModelTypes> {
 public:
  explicit LanguageModelTask(const DistContext& context, LanguageModelTaskOptions options = {});

  ForwardInputs<LanguageModelTypes> build_forward_inputs(const TokenBatch& batch) override;
  LossResult compute_loss(const Output& output, LanguageModelState& state, const JobSchedule& schedule) override;
  MetricMap create_metrics() override { return {{"num_predicted", std::make_shared<SumMetric>()}}; }
  void update_metrics(const LanguageModelState& state, const MetricMap& metrics) override;

 private:
  PositionCut positions_;  // of the ranks that share a sequence
  LanguageModelTaskOptions options_;
};

}  // namespace d9d
