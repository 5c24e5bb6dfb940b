#include "d9d/pipelining/executor/measure_stage.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/core/device/allocated_bytes.h"
#include "d9d/core/device/moment.h"
#include "d9d/core/rng/element_random.h"
#include "d9d/pipelining/executor/message_layout.h"
#include "d9d/pipelining/executor/stage_graph.h"

namespace d9d {
namespace {

using Leaves = std::vector<at::Tensor>;

// Several leaves as parts of one message, as they arrive.
Leaves copies_of(const Leaves& leaves, c10::Device device) {
  if (leaves.size() == 1) return {leaves.front().detach().clone()};
  const at::Tensor message = at::empty({message_bytes(leaves)}, at::TensorOptions(device).dtype(at::kByte));
  Leaves copies = parts_of(message, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) copies[i].copy_(leaves[i].detach());
  return copies;
}

// Where a pass is looked at, in this order.
enum class Point { kStart, kForward, kForwardDone, kKept, kBackward, kBackwardDone, kDeferred, kWeight, kWeightDone };

// Runs passes of one microbatch through the stage.
class Passes {
 public:
  Passes(PipelineStage& stage, const StageSample& sample) : stage_(stage), sample_(sample), deferred_(stage.weights()) {
    if (sample.is_last) return;
    for (const at::Tensor& leaf : differentiable(stage.transfer(sample.microbatch, StageBoundary::kOutgoing))) {
      gradients_.push_back(at::empty(leaf.sizes(), leaf.options().device(sample.device)));
      const at::Tensor numbers = leaf.is_complex() ? at::view_as_real(gradients_.back()) : gradients_.back();
      fill_normal(numbers, whole_window(numbers), {.key = gradients_.size()}, 0, 1);
    }
  }

  // F and B, or F, I and W. Calls note(point) at each point that the pass comes to.
  template <class Note>
  void run(bool is_split, bool backward_follows, const Note& note) {
    if (sample_.before_forward) sample_.before_forward();
    note(Point::kStart);
    Leaves arrived = copies_of(sample_.arrived, sample_.device);
    for (const at::Tensor& leaf : differentiable(arrived)) leaf.set_requires_grad(true);
    note(Point::kForward);
    stage_.begin_forward(sample_.microbatch);
    Leaves made = stage_.forward(sample_.microbatch, arrived, backward_follows);
    stage_.end_forward(sample_.microbatch);
    note(Point::kForwardDone);
    StageGraph graph(sample_.is_last ? made : differentiable(made));
    const at::TensorOptions of_loss = sample_.is_last ? made.front().options() : at::TensorOptions();
    made.clear();
    note(Point::kKept);
    Leaves gradients = sample_.is_last ? Leaves{at::ones({}, of_loss)} : copies_of(gradients_, sample_.device);
    WeightGradients of_weights;
    const auto backward = [&] { graph.backward(std::move(gradients)); };
    note(Point::kBackward);
    stage_.backward(sample_.microbatch, is_split ? BackwardPart::kInput : BackwardPart::kWhole, /*is_last=*/false,
                    [&] { is_split ? void(of_weights = deferred_.keep(backward)) : backward(); });
    note(Point::kBackwardDone);
    gradients.clear();
    arrived.clear();
    note(Point::kDeferred);
    if (!is_split) return;
    note(Point::kWeight);
    stage_.backward(sample_.microbatch, BackwardPart::kWeight, /*is_last=*/false, [&] { of_weights.run(); });
    note(Point::kWeightDone);
  }

 private:
  PipelineStage& stage_;
  const StageSample& sample_;
  DeferredGradients deferred_;
  Leaves gradients_;  // of what the stage hands on
};

// The times of the passes, read when all of them have run: the host runs ahead of the device as in a step.
class Times {
 public:
  explicit Times(c10::Device device) : device_(device) {}
  void begin_pass() { passes_.emplace_back(); }
  void note(Point point) { passes_.back().insert_or_assign(point, Moment(device_)); }
  [[nodiscard]] double median_between(Point begin, Point end) const {
    std::vector<std::pair<Moment, Moment>> spans;
    for (const auto& pass : passes_) spans.emplace_back(pass.at(begin), pass.at(end));
    return median_seconds(spans);
  }

 private:
  c10::Device device_;
  std::vector<std::map<Point, Moment>> passes_;
};

void measure_bytes(Passes& passes, c10::Device device, StageCosts& costs) {
  std::optional<AllocatedBytes> allocated;
  std::map<Point, std::int64_t> bytes;
  // Of several live microbatches at most the last one's backward follows.
  passes.run(/*is_split=*/true, /*backward_follows=*/false, [&](Point point) {
    if (point == Point::kStart) allocated.emplace(device);
    bytes[point] = allocated->now();
  });
  const auto since_start = [&](Point point) {
    return static_cast<double>(std::max<std::int64_t>(0, bytes.at(point) - bytes.at(Point::kStart)));
  };
  costs.activation_bytes = since_start(Point::kKept);
  costs.deferred_bytes = since_start(Point::kDeferred);
}

}  // namespace

StageCosts measure_stage(PipelineStage& stage, const StageSample& sample) {
  const at::AutoGradMode with_gradients(true);
  Passes passes(stage, sample);
  Times whole(sample.device), split(sample.device);
  for (std::int64_t i = -1; i < sample.num_repeats; ++i) {  // the first does not count
    for (Times* const times : {&whole, &split}) {
      if (i >= 0) times->begin_pass();
      passes.run(times == &split, /*backward_follows=*/true, [&](Point point) {
        if (i >= 0) times->note(point);
      });
    }
  }
  StageCosts costs{.forward = split.median_between(Point::kForward, Point::kForwardDone),
                   .backward = whole.median_between(Point::kBackward, Point::kBackwardDone),
                   .backward_input = split.median_between(Point::kBackward, Point::kBackwardDone),
                   .backward_weight = split.median_between(Point::kWeight, Point::kWeightDone)};
  measure_bytes(passes, sample.device, costs);
  return costs;
}

}  // namespace d9d
