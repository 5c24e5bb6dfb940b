// DualPipe (DeepSeek-AI, arXiv:2412.19437) folded into a V: the forward of one microbatch is composed with the backward
// of another, so that the communication of one is hidden by the computations of the other.
#include <deque>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/compute_order.h"
#include "d9d/pipelining/schedules/v_counters.h"

namespace d9d {
namespace {

using detail::VCounters;

// Appends input passes (I) and, later and in the same order, their weight passes (W).
class DeferredWeights {
 public:
  explicit DeferredWeights(VCounters& v) : v_(v) {}
  void backward_input(VCounters::Stage& stage) {
    pending_.emplace_back(stage.index, MicrobatchIndex{stage.num_backwards});
    v_.backward_input(stage);
  }
  void emit_one() {
    if (pending_.empty()) return;
    const auto [stage, microbatch] = pending_.front();
    pending_.pop_front();
    v_.backward_weight(stage, microbatch);
  }

 private:
  VCounters& v_;
  std::deque<std::pair<StageIndex, MicrobatchIndex>> pending_;
};

void ramp_up(VCounters& v, DeferredWeights& weights, std::int64_t num_ranks, std::int64_t rank) {
  for (std::int64_t i = 0; i < 2 * (num_ranks - rank - 1); ++i) v.forward(v.early());
  for (std::int64_t i = 0; i < rank + 1; ++i) {
    v.forward(v.early());
    v.forward(v.late());
  }
  for (std::int64_t i = 0; i < num_ranks - rank - 1; ++i) {
    weights.backward_input(v.late());
    weights.emit_one();
    v.forward(v.late());
  }
}

void steady(VCounters& v, std::int64_t num_ranks, std::int64_t rank, std::int64_t num_rounds) {
  for (std::int64_t i = 0; i < num_rounds; ++i) {
    if (i == 0 && rank == num_ranks - 1) {  // as in DualPipe: composing these two makes the bubble larger
      v.forward(v.early());
      v.backward(v.late());
    } else {
      v.forward_and_backward(v.early(), v.late());
    }
    v.forward_and_backward(v.late(), v.early());
  }
}

void ramp_down(VCounters& v, DeferredWeights& weights, std::int64_t num_ranks, std::int64_t rank) {
  for (std::int64_t i = 0; i < num_ranks - rank - 1; ++i) {
    v.backward(v.late());
    v.forward_and_backward(v.late(), v.early());
  }
  // From the middle of this phase on, weight gradients are deferred to fill the bubbles of the next two phases.
  bool is_split = false;
  const auto backward = [&](VCounters::Stage& stage) { is_split ? weights.backward_input(stage) : v.backward(stage); };
  for (std::int64_t i = 0; i < rank + 1; ++i) {
    const bool is_middle = i == (rank + 1) / 2;
    is_split |= is_middle && rank % 2 == 1;
    backward(v.late());
    is_split |= is_middle && rank % 2 == 0;
    backward(v.early());
  }
  for (std::int64_t i = 0; i < num_ranks - rank - 1; ++i) {
    weights.emit_one();
    weights.backward_input(v.early());
  }
  for (std::int64_t i = 0; i < rank + 1; ++i) weights.emit_one();
}

}  // namespace

RankProgram dual_pipe_v_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
  const std::int64_t num_ranks = stages.num_ranks();
  D9D_CHECK(stages == StagePlacement::v(num_ranks, 2), ConfigError,
            "[pipelining::dual_pipe_v] expected 2 stages a rank as a V, got another placement of ", stages.num_stages(),
            " stages on ", num_ranks, " ranks. Use StagePlacement::v.");
  D9D_CHECK(num_microbatches >= 2 * num_ranks, ConfigError,
            "[pipelining::dual_pipe_v] expected at least 2 microbatches a rank, ", 2 * num_ranks, " for ", num_ranks,
            " ranks, got ", num_microbatches, ". Use more microbatches, or zero_bubble_v, which takes any number.");
  VCounters v(stages, rank);
  DeferredWeights weights(v);
  ramp_up(v, weights, num_ranks, rank);
  steady(v, num_ranks, rank, num_microbatches - 2 * num_ranks + rank + 1);
  ramp_down(v, weights, num_ranks, rank);
  return v.take();
}

}  // namespace d9d
