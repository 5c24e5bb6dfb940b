#include "d9d/pipelining/executor/stage_probe.h"

#include <utility>

#include <ATen/ATen.h>

namespace d9d {

void StageProbe::forward(Leaves arrived, bool backward_follows) {
  arrived_ = std::move(arrived);
  for (const at::Tensor& leaf : differentiable(arrived_)) leaf.set_requires_grad(true);
  stage_.begin_forward(microbatch_);
  const Leaves made = stage_.forward(microbatch_, arrived_, backward_follows);
  stage_.end_forward(microbatch_);
  graph_.emplace(is_last_stage_ ? made : differentiable(made));
  if (is_last_stage_) of_loss_ = made.front().options();
}

void StageProbe::backward(Leaves gradients, bool is_last, bool on_current_stream) {
  run(BackwardPart::kWhole, std::move(gradients), is_last, on_current_stream, nullptr);
}

void StageProbe::backward_input(Leaves gradients, DeferredGradients& deferred) {
  run(BackwardPart::kInput, std::move(gradients), /*is_last=*/false, /*on_current_stream=*/false, &deferred);
}

void StageProbe::backward_weight(bool is_last) {
  stage_.backward(microbatch_, BackwardPart::kWeight, is_last,
                  [this] { std::exchange(of_weights_, WeightGradients()).run(); });
}

void StageProbe::run(BackwardPart part, Leaves gradients, bool is_last, bool on_current_stream,
                     DeferredGradients* deferred) {
  if (is_last_stage_) gradients = {at::ones({}, of_loss_)};
  stage_.backward(microbatch_, part, is_last, [&] {
    const auto run_graph = [&] {
      if (on_current_stream) graph_->accumulate_on_current_stream();
      graph_->backward(std::move(gradients));
    };
    if (deferred == nullptr) return run_graph();
    of_weights_ = deferred->keep(run_graph);
  });
  graph_.reset();
  arrived_.clear();
}

}  // namespace d9d
