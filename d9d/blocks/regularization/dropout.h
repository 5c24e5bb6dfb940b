// In training, zeroes elements with a given probability and scales the others up.
//
// The mask is a function of (base seed, this module's name, step, microbatch, call, element). It is therefore the same
// in a recomputation, on every device, in every repetition of the run, and on every layout with the same microbatches.
// Microbatches are numbered over all ranks, calls of this module within a microbatch (its second forward has another
// mask than its first), and elements over the whole tensor if several ranks share one.
//
// Example
//   x = dropout(x);                                                        // [B, S, H]
//   dropout->add_cut({.ranks = PositionCut(batch.slice({"tp"})), .dim = 1});   // a rank has S / W of the positions
#pragma once

#include <optional>
#include <vector>

#include "d9d/core/dtensor/position_cut.h"
#include "d9d/modules/module.h"

namespace d9d {

// Which part of a tensor each of several ranks holds: that of a cut of `dim`, or the whole tensor if `dim` is none.
struct TensorCut {
  PositionCut ranks;
  std::optional<std::int64_t> dim = std::nullopt;
};

class Dropout : public Module {
 public:
  explicit Dropout(double probability);  // in [0, 1)
  // x of any shape -> the same shape. In training throws ConfigError if more ranks share a microbatch, according to the
  // clock, than the cuts cover, or if x lacks a dim that is cut.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  // Local. Cuts the part that earlier cuts leave. Ranks that have a cut keep it: a block says what its children get,
  // before parallelize_context_parallel() and parallelize_tensor_parallel() call this for x [B, S, ...].
  void add_cut(const TensorCut& cut);

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;

  const double probability;

 protected:
  // A part of the mask, and where it is in the whole one.
  struct Part {
    at::Tensor mask;
    ElementWindow window;
  };
  // The parts of a mask by the cuts. Throws ConfigError as forward() does.
  [[nodiscard]] virtual std::vector<Part> parts_of(const at::Tensor& mask) const;

 private:
  [[nodiscard]] RandomStream next_stream() const;
  void check_cuts(const RandomClock& clock) const;

  std::vector<TensorCut> cuts_;  // outermost first
};

}  // namespace d9d
