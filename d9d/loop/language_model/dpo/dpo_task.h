// Direct preference optimization (Rafailov et al., arXiv:2305.18290) as a training task: the model learns to give the
// chosen answer of each pair more probability, relative to a reference model, than the rejected one.
//
// Example
//   DpoTask task(context, {.beta = 0.1});
//   CausalLMProvider<Parameters, DpoTypes> model(...);
//   Trainer<DpoTypes> trainer(context, config.trainer, {.task = task, .model = model, .data = pairs, ...});
//
// Legend   P pairs of a microbatch, pi and ref: log-probabilities of an answer by the model and by the reference
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/loop/language_model/decoder_inputs.h"
#include "d9d/loop/language_model/dpo/dpo_config.h"
#include "d9d/loop/task/task.h"
#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

struct DpoState {
  at::Tensor is_pair;    // [P] bool: both answers have a label; padding has none
  at::Tensor num_pairs;  // scalar: how many
  at::Tensor reference;  // [P, 2]: ref of the chosen and the rejected answer; undefined until take_reference()
  at::Tensor model;      // [P, 2]: pi likewise; undefined until compute_loss()
  static constexpr auto fields() {
    using State = DpoState;
    return record<State>(field("is_pair", &State::is_pair), field("num_pairs", &State::num_pairs),
                         field("reference", &State::reference), field("model", &State::model));
  }
};

// Batch: 2 P sequences, not packed: row 2 p is the chosen answer of pair p behind its prompt, row 2 p + 1 the rejected
// one. labels are kIgnoreIndex outside of the answers.
struct DpoTypes {
  using Batch = TokenBatch;
  using Input = SequenceInput;
  using Transfer = SequenceTransfer;
  using Shared = DecoderForCausalLM::Shared;
  using Output = DecoderOutput<LanguageModellingHead>;
  using State = DpoState;
};

// The loss of a pair is -log sigmoid(beta ((pi_chosen - ref_chosen) - (pi_rejected - ref_rejected))), that of a
// microbatch the mean over its pairs, and its weight their number, so that the loss of a step is the mean over all
// pairs. A model with experts adds its auxiliary loss. Logs, as means over pairs,
//
//   rewards/chosen, rewards/rejected   beta (pi - ref)
//   rewards/margins                    their difference
//   rewards/accuracies                 share of pairs in which the chosen answer has the larger reward
//   logps/chosen, logps/rejected       pi
class DpoTask : public TrainTask<DpoTypes> {
 public:
  explicit DpoTask(const DistContext& context, DpoConfig config = {}, LanguageModelTaskOptions options = {});

  [[nodiscard]] std::optional<ReferenceWeights> reference() const override { return config_.reference; }
  // Throws ConfigError for packed sequences, and for an odd number of them.
  ForwardInputs<DpoTypes> build_forward_inputs(const TokenBatch& batch) override;
  void take_reference(const Output& output, DpoState& state) override;
  LossResult compute_loss(const Output& output, DpoState& state, const JobSchedule& schedule) override;
  MetricMap create_metrics() override;
  void update_metrics(const DpoState& state, const MetricMap& metrics) override;
  [[nodiscard]] nlohmann::json dump_hparams() const override;

 private:
  [[nodiscard]] at::Tensor log_probs_of_pairs(const Output& output) const;  // [P, 2]

  PositionCut positions_;  // of the ranks that share a sequence
  DpoConfig config_;
  LanguageModelTaskOptions options_;
};

}  // namespace d9d
