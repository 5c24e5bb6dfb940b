#include "d9d/loop/component/training_stage.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/core/device/side_stream.h"
#include "d9d/metrics/metric.h"
#include "d9d/modules/trained_leaves.h"
#include "d9d/pipelining/executor/transfer_text.h"

namespace d9d {

StageJob stage_job_of(const TrainingJob& job) {
  return {.schedule = job.schedule,
          .stages = job.stages,
          .clock = *job.clock,
          .metrics = job.metrics,
          .loss_means = *job.loss_means};
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

std::vector<at::Tensor> TrainingStage::transfer(MicrobatchIndex microbatch, StageBoundary boundary) const {
  std::vector<at::Tensor> like = binding_.transfer(place_.local, static_cast<std::size_t>(microbatch.value), boundary);
  D9D_CHECK(std::ranges::all_of(like, &at::Tensor::defined), StateError,
            "[loop::model_stage] expected stage_transfer() to return tensors of the meta device, got ",
            transfer_text(like), " of stage ", place_.index.value, " for microbatch ", microbatch.value,
            ". A transfer has the same tensors on both sides: return an empty one for what is missing.");
  return like;
}

std::string TrainingStage::stage_text() const {
  return place_.num_stages == 1 ? "" : cat("stage ", place_.index.value, ", ");
}

// A model in one stage runs each microbatch's backward right after its forward.
std::vector<at::Tensor> TrainingStage::forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                               bool backward_follows) {
  const auto index = static_cast<std::size_t>(microbatch.value);
  job_.clock.microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()),
                           .number = step_.numbers[index]};
  Module& module = *job_.stages[place_.local];
  if (module.backward_follows() != backward_follows) module.set_backward_follows(backward_follows);
  GradientManager& gradients = *step_.gradients;
  const bool is_one_stage = place_.num_stages == 1;
  is_one_stage ? gradients.begin_microbatch(index + 1 == step_.numbers.size())
               : gradients.begin_forward(place_.local, microbatch.value);
  const auto run = [&] {
    return is_last_stage() ? std::vector<at::Tensor>{loss(index, arrived)} : inner_forward(index, arrived);
  };
  std::vector<at::Tensor> made = in_microbatch(index, job_.schedule, "in training", run, stage_text());
  if (!is_one_stage) gradients.end_forward(place_.local, microbatch.value);
  if (place_.is_last_of_rank && !step_.keeps_inputs) binding_.drop_inputs(index);
  return made;
}

std::vector<at::Tensor> TrainingStage::inner_forward(std::size_t microbatch, const std::vector<at::Tensor>& arrived) {
  std::vector<at::Tensor> made = without_backward([&] { return binding_.forward(place_.local, microbatch, arrived); });
  for (const at::Tensor& leaf : made) {
    if (step_.first_step != nullptr && leaf.requires_grad()) step_.first_step->watch(leaf);
  }
  return made;
}

at::Tensor TrainingStage::loss(std::size_t microbatch, const std::vector<at::Tensor>& arrived) {
  const LossResult result =
      without_backward([&] { return binding_.last_forward(place_.local, microbatch, arrived, job_.schedule); });
  const WeightedLoss weighted =
      with_error_place("in compute_loss", [&] { return weighted_loss(result, step_.shares[microbatch]); });
  if (step_.first_step != nullptr) step_.first_step->watch(weighted.loss);
  step_.gradients->add_loss_with_weight(weighted.loss, weighted.weight);
  update_loss_means(job_.loss_means, weighted, step_.weights[microbatch]);
  keep_for_current_stream(weighted.weight);  // the task's, perhaps of another stream, and the graph alone keeps it
  return weighted.loss.mul(weighted.weight.detach());
}

std::vector<at::Tensor> TrainingStage::weights() const { return trained_leaves(*job_.stages[place_.local]); }

void TrainingStage::backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                             const std::function<void()>& compute) {
  const auto index = static_cast<std::size_t>(microbatch.value);
  GradientManager& gradients = *step_.gradients;
  const bool is_one_stage = place_.num_stages == 1;
  if (!is_one_stage) gradients.begin_backward(place_.local, microbatch.value, part, is_last);
  in_microbatch(index, job_.schedule, "in backward", compute, stage_text());
  is_one_stage ? gradients.end_microbatch() : gradients.end_backward(place_.local);
}

void TrainingStage::after_backward(MicrobatchIndex microbatch, BackwardPart part) {
  const auto index = static_cast<std::size_t>(microbatch.value);
  if (!is_last_stage() || part == BackwardPart::kWeight) return;
  in_microbatch(index, job_.schedule, "in update_metrics", [&] { binding_.update_metrics(index, job_.metrics); });
}

}  // namespace d9d
