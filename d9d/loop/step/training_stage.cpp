#include "d9d/loop/step/training_stage.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/core/device/side_stream.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/modules/trained_leaves.h"
#include "d9d/pipelining/executor/transfer_text.h"

namespace d9d {
namespace {

// While it lives and `captures` is true, drawing random numbers from the clock throws, since every replay of the graph
// would draw the same numbers.
class Capturing {
 public:
  Capturing(RandomClock& clock, bool captures) : clock_(clock) { clock_.is_captured = captures; }
  ~Capturing() { clock_.is_captured = false; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

 private:
  RandomClock& clock_;
};

}  // namespace

StageJob stage_job_of(const TrainingJob& job) {
  return {.schedule = job.schedule, .clock = *job.clock, .metrics = job.metrics, .loss_means = *job.loss_means};
}

void name_loss_means(MetricMap& loss_means, const LossWeights& weights) {
  for (const auto& [name, weight] : weights) {
    auto& mean = loss_means["loss/" + name];
    if (mean == nullptr) mean = std::make_shared<MeanMetric>();
  }
}

void update_loss_means(const MetricMap& loss_means, const WeightedLoss& loss, const LossWeights& weights) {
  for (const auto& [name, own] : loss.losses) {
    static_cast<MeanMetric&>(*loss_means.at("loss/" + name)).update(own, weights.at(name));
  }
}

std::vector<at::Tensor> checked_transfer(const AnyMicrobatch& microbatch, std::int64_t index,
                                         const AnyModelStage& stage, StageBoundary boundary) {
  std::vector<at::Tensor> like = microbatch.transfer(stage, boundary);
  D9D_CHECK(std::ranges::all_of(like, &at::Tensor::defined), StateError,
            "[loop::model_stage] expected stage_transfer() to return tensors of the meta device, got ",
            transfer_text(like), " of stage ", stage.info.current_stage, " for microbatch ", index,
            ". A transfer has the same tensors on both sides: return an empty one for what is missing.");
  return like;
}

std::vector<at::Tensor> TrainingStage::transfer(MicrobatchIndex microbatch, StageBoundary boundary) const {
  return checked_transfer(at(microbatch), microbatch.value, stage_, boundary);
}

std::string TrainingStage::stage_text() const {
  return stage_.info.num_stages == 1 ? "" : cat("stage ", stage_.info.current_stage, ", ");
}

void TrainingStage::begin_forward(MicrobatchIndex microbatch) {
  job_.clock.microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()),
                           .number = at(microbatch).number};
  const StagePass pass{.kind = StagePassKind::kForward,
                       .microbatch = static_cast<std::int64_t>(index_in_step(microbatch))};
  in_microbatch(
      index_in_step(microbatch), job_.schedule, "in training", [&] { step_.gradients->begin_pass(place_.local, pass); },
      stage_text());
}

std::vector<at::Tensor> TrainingStage::forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                               bool backward_follows) {
  Module& module = *stage_.module;
  if (module.backward_follows() != backward_follows) module.set_backward_follows(backward_follows);
  const auto run = [&] {
    const Capturing capturing(job_.clock, is_being_captured());
    return stage_.info.is_last() ? std::vector<at::Tensor>{loss(microbatch, arrived)}
                                 : inner_forward(microbatch, arrived);
  };
  return in_microbatch(index_in_step(microbatch), job_.schedule, "in training", run, stage_text());
}

void TrainingStage::end_forward(MicrobatchIndex microbatch) {
  if (stage_.info.is_last()) add_loss(at(microbatch), loss_of(microbatch));
  step_.gradients->end_pass(place_.local);
  if (place_.is_last_of_rank && !step_.executed.keep_inputs) at(microbatch).drop_inputs();
}

void TrainingStage::add_loss(const AnyMicrobatch& microbatch, WeightedLoss& loss) {
  step_.gradients->add_loss_with_weight(loss.loss, loss.weight);
  update_loss_means(job_.loss_means, loss, microbatch.loss_weights);
}

WeightedLoss& TrainingStage::loss_of(MicrobatchIndex microbatch) {
  auto& losses = is_captured() ? step_.executed.graph->losses : step_.losses;
  const std::size_t index = is_captured() ? static_cast<std::size_t>(microbatch.value) : index_in_step(microbatch);
  losses.resize(std::max(losses.size(), index + 1));
  return losses[index];
}

std::vector<at::Tensor> TrainingStage::inner_forward(MicrobatchIndex microbatch,
                                                     const std::vector<at::Tensor>& arrived) {
  std::vector<at::Tensor> made = without_backward([&] { return at(microbatch).forward(stage_, arrived); });
  for (const at::Tensor& leaf : made) {
    if (step_.first_step != nullptr && leaf.requires_grad()) step_.first_step->watch(leaf);
  }
  return made;
}

at::Tensor TrainingStage::loss(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived) {
  const JobSchedule schedule = is_captured() ? job_.schedule.without_step() : job_.schedule;
  const LossResult result = without_backward([&] { return at(microbatch).forward_loss(stage_, arrived, schedule); });
  const WeightedLoss weighted =
      with_error_place("in compute_loss", [&] { return weighted_loss(result, at(microbatch).loss_scales); });
  if (step_.first_step != nullptr) step_.first_step->watch(weighted.loss);
  WeightedLoss detached{.loss = weighted.loss.detach(), .weight = weighted.weight.detach(), .losses = {}};
  for (const auto& [name, own] : weighted.losses) detached.losses.emplace(name, own.detach());
  loss_of(microbatch) = std::move(detached);
  keep_for_current_stream(weighted.weight);  // may be of another stream and only in the autograd graph
  return weighted.loss.mul(weighted.weight.detach());
}

std::vector<at::Tensor> TrainingStage::weights() const { return trained_leaves(*stage_.module); }

void TrainingStage::backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                             const std::function<void()>& compute) {
  in_microbatch(
      index_in_step(microbatch), job_.schedule, "in backward",
      [&] { run_backward(microbatch, part, is_last, compute); }, stage_text());
}

void TrainingStage::run_backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                                 const std::function<void()>& compute) {
  GradientManager& gradients = *step_.gradients;
  const bool is_last_of_step = is_last && step_.executed.are_last;
  // The sums of gradients over ranks, which begin with a stage's last backward of the step, cannot be part of a graph.
  // The second begin_pass() below starts them, after the graph was captured or replayed.
  StagePass pass{.kind = StagePassKind::kBackward,
                 .microbatch = static_cast<std::int64_t>(index_in_step(microbatch)),
                 .part = part,
                 .is_last = is_last_of_step && !is_captured()};
  gradients.begin_pass(place_.local, pass);
  {
    const Capturing capturing(job_.clock, is_being_captured());
    compute();
  }
  if (is_last && is_captured()) {
    auto& received = step_.executed.graph->received;
    if (is_being_captured()) {
      received.resize(std::max(received.size(), place_.local + 1));
      received[place_.local] = gradients.received(place_.local);
    }
    gradients.set_received(place_.local, received[place_.local]);
    pass.is_last = is_last_of_step;
    gradients.begin_pass(place_.local, pass);
  }
  gradients.end_pass(place_.local);
}

void TrainingStage::after_backward(MicrobatchIndex microbatch, BackwardPart part) {
  if (!stage_.info.is_last() || part == BackwardPart::kWeight) return;
  if (is_captured()) take_state_after_replay(microbatch);
  in_microbatch(index_in_step(microbatch), job_.schedule, "in update_metrics",
                [&] { at(microbatch).update_metrics(job_.metrics); });
}

// Replaces the microbatch's state by a copy of the state that the graph wrote, since metrics may keep it and the next
// replay overwrites the graph's own.
void TrainingStage::take_state_after_replay(MicrobatchIndex microbatch) {
  std::unique_ptr<AnyMicrobatch>& after = step_.executed.graph->after[static_cast<std::size_t>(microbatch.value)];
  AnyMicrobatch& own = at(microbatch);
  if (is_being_captured()) {
    after = own.copy();
    after->detach_tensors();
  }
  const std::unique_ptr<AnyMicrobatch> copy = after->copy();
  for (at::Tensor& leaf : copy->state_tensors()) {
    if (leaf.defined()) leaf = leaf.clone();
  }
  own.assign(std::move(*copy));
}

}  // namespace d9d
