#include "d9d/pipelining/executor/measure_stage.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/grad_mode.h>

#include "d9d/core/device/allocated_bytes.h"
#include "d9d/core/device/moment.h"
#include "d9d/core/rng/element_random.h"
#include "d9d/pipelining/executor/message_layout.h"
#include "d9d/pipelining/executor/stage_probe.h"

namespace d9d {
namespace {

using Leaves = std::vector<at::Tensor>;

// Returns copies in the layout of a received message: if there are several leaves, all are parts of one buffer.
Leaves copies_of(const Leaves& leaves, c10::Device device) {
  if (leaves.size() == 1) return {leaves.front().detach().clone()};
  const at::Tensor message = at::empty({message_bytes(leaves)}, at::TensorOptions(device).dtype(at::kByte));
  Leaves copies = parts_of(message, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) copies[i].copy_(leaves[i].detach());
  return copies;
}

// The points of a pass where time or memory is measured, in this order.
enum class Point { kStart, kForward, kForwardDone, kBackward, kBackwardDone, kWeight, kWeightDone };

// Runs passes of one microbatch through the stage.
class Passes {
 public:
  explicit Passes(const SampledStage& of, const ComputeStreams* streams = nullptr)
      : sample_(of.sample),
        has_streams_(streams != nullptr),
        deferred_(of.stage.weights()),
        probe_(of.stage, of.sample.microbatch, of.sample.is_last) {
    if (sample_.is_last) return;
    for (const at::Tensor& leaf : differentiable(of.stage.transfer(sample_.microbatch, StageBoundary::kOutgoing))) {
      gradients_.push_back(at::empty(leaf.sizes(), leaf.options().device(sample_.device)));
      const at::Tensor numbers = leaf.is_complex() ? at::view_as_real(gradients_.back()) : gradients_.back();
      fill_normal(numbers, whole_window(numbers), {.key = gradients_.size()}, 0, 1);
    }
  }

  void prepare() const {
    if (sample_.before_forward) sample_.before_forward();
  }

  // Runs F and B, or F, I and W. Calls note(point) at each point of the pass.
  template <class Note>
  void run(bool is_split, bool backward_follows, const Note& note) {
    prepare();
    forward(backward_follows, note);
    backward(is_split, note);
  }

  template <class Note>
  void forward(bool backward_follows, const Note& note) {
    note(Point::kStart);
    Leaves arrived = copies_of(sample_.arrived, sample_.device);
    note(Point::kForward);
    probe_.forward(std::move(arrived), backward_follows);
    note(Point::kForwardDone);
  }

  // Runs the backward of the last forward().
  template <class Note>
  void backward(bool is_split, const Note& note) {
    Leaves gradients = sample_.is_last ? Leaves() : copies_of(gradients_, sample_.device);
    note(Point::kBackward);
    is_split ? probe_.backward_input(std::move(gradients), deferred_)
             : probe_.backward(std::move(gradients), /*is_last=*/false, has_streams_);
    note(Point::kBackwardDone);
    if (!is_split) return;
    note(Point::kWeight);
    probe_.backward_weight();
    note(Point::kWeightDone);
  }

 private:
  const StageSample& sample_;
  const bool has_streams_;
  DeferredGradients deferred_;
  StageProbe probe_;
  Leaves gradients_;  // gradients of the stage's outputs
};

// Collects the times of passes and reads them after all passes have run, so that the host runs ahead of the device as
// in a step.
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
  // Measures a forward whose backward does not follow immediately: of the microbatches that a rank keeps at the same
  // time, only the last is followed immediately by its backward.
  passes.run(/*is_split=*/true, /*backward_follows=*/false, [&](Point point) {
    if (point == Point::kStart) allocated.emplace(device);
    bytes[point] = allocated->now();
  });
  const auto since_start = [&](Point point) {
    return static_cast<double>(std::max<std::int64_t>(0, bytes.at(point) - bytes.at(Point::kStart)));
  };
  costs.activation_bytes = since_start(Point::kForwardDone);
  costs.deferred_bytes = since_start(Point::kBackwardDone);
}

// Page-locked host memory in use.
std::int64_t page_locked_bytes(c10::Device device) {
  return device.is_cuda() ? at::getHostAllocator(at::kCUDA)->get_stats().active_bytes.current : 0;
}

}  // namespace

StageCosts measure_stage(PipelineStage& stage, const StageSample& sample) {
  const at::AutoGradMode with_gradients(true);
  Passes passes({stage, sample});
  Times whole(sample.device), split(sample.device);
  for (std::int64_t i = -1; i < sample.num_repeats; ++i) {  // i = -1 warms up
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

PassCosts measure_pass(PipelineStage& stage, const StageSample& sample, const PassKind& kind) {
  const at::AutoGradMode with_gradients(true);
  Passes passes({stage, sample});
  AllocatedBytes allocated(sample.device);
  Times times(sample.device);
  PassCosts most;
  for (std::int64_t i = -1; i < sample.num_repeats; ++i) {  // i = -1 warms up
    if (i >= 0) times.begin_pass();
    std::int64_t before = 0, total_before = 0, host_before = 0;
    passes.run(kind.is_split, kind.backward_follows, [&](Point point) {
      if (i < 0) return;
      if (point == Point::kStart) {
        allocated.reset_peak();
        before = allocated.now();
        total_before = allocated.total();
        host_before = page_locked_bytes(sample.device);
      }
      times.note(point);
      const auto take = [](double& largest, std::int64_t bytes) {
        largest = std::max(largest, static_cast<double>(bytes));
      };
      if (point == Point::kForwardDone) {
        take(most.activation_bytes, allocated.now() - before);
        take(most.host_bytes, page_locked_bytes(sample.device) - host_before);
        take(most.allocated_bytes, allocated.total() - total_before);
      }
      if (point == Point::kBackwardDone && kind.is_split) take(most.deferred_bytes, allocated.now() - before);
      take(most.peak_bytes, allocated.peak() - before);
    });
  }
  const Point end = kind.is_split ? Point::kWeightDone : Point::kBackwardDone;
  most.seconds =
      times.median_between(Point::kForward, Point::kForwardDone) + times.median_between(Point::kBackward, end);
  return most;
}

double peak_of_pass(PipelineStage& stage, const StageSample& sample, const PassKind& kind) {
  const at::AutoGradMode with_gradients(true);
  Passes passes({stage, sample});
  AllocatedBytes allocated(sample.device);
  allocated.reset_peak();
  const std::int64_t before = allocated.now();
  passes.run(kind.is_split, kind.backward_follows, [](Point) {});
  return static_cast<double>(allocated.peak() - before);
}

double measure_composed(const SampledStage& forward, const SampledStage& backward, const ComputeStreams* streams) {
  const at::AutoGradMode with_gradients(true);
  const auto unnoted = [](Point) {};
  const auto on_lane = [&](std::int64_t lane, const std::function<void()>& work) {
    streams == nullptr ? work() : streams->run(lane, work);
  };
  Passes beside(forward, streams), passes(backward, streams);
  std::vector<std::pair<Moment, Moment>> spans;
  for (std::int64_t i = -1; i < backward.sample.num_repeats; ++i) {  // i = -1 warms up
    passes.prepare();
    {
      const ComputeStreams::Joined joined(streams);
      on_lane(1, [&] { passes.forward(/*backward_follows=*/true, unnoted); });
    }
    const Moment begin(backward.sample.device);
    {
      const ComputeStreams::Joined joined(streams);
      on_lane(1, [&] { passes.backward(/*is_split=*/false, unnoted); });
      on_lane(0, [&] { beside.forward(/*backward_follows=*/true, unnoted); });
    }
    const Moment end(backward.sample.device);
    beside.backward(/*is_split=*/false, unnoted);
    if (i >= 0) spans.emplace_back(begin, end);
  }
  return median_seconds(spans);
}

}  // namespace d9d
