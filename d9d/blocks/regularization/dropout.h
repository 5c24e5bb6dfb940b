// Zeroes elements with a probability and scales the rest up, in training only.
//
// The mask is a function of (base seed, this module's name, step, microbatch, call, element): the same in a
// recomputation, on every device, in every repetition of the run, and on every layout that has the same microbatches.
// Microbatches are numbered over all ranks, calls of this module within a microbatch (its second forward has another
// mask than its first), elements over the whole tensor where ranks share one.
//
// Example
//   x = dropout(x);                                                        // [B, S, H]
//   dropout->add_cut({.ranks = batch.slice({"cp"}), .dim = 1});            // a rank has S / W of the positions
#pragma once

#include <optional>
#include <vector>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/modules/module.h"

namespace d9d {

// Which part of a tensor each of some ranks has: equal parts of `dim` in the order of the ranks; none: all have all.
struct TensorCut {
  DeviceMesh ranks;
  std::optional<std::int64_t> dim = std::nullopt;
  bool operator==(const TensorCut&) const = default;
};

class Dropout : public Module {
 public:
  explicit Dropout(double probability);  // in [0, 1)
  // x of any shape -> the same shape. Throws ConfigError in training when the clock knows more ranks of a microbatch
  // than the cuts do, or where x lacks a dim that is cut.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  // Local. Cuts what the cuts before it have left; a cut that is there already is not added again.
  // parallelize_context_parallel() and parallelize_sequence_parallel() do it for x [B, S, ...].
  void add_cut(const TensorCut& cut);

  const double probability;

 private:
  [[nodiscard]] ElementWindow window_of(const at::Tensor& x) const;
  [[nodiscard]] RandomStream next_stream() const;
  void check_cuts(const RandomClock& clock) const;

  std::vector<TensorCut> cuts_;  // from the outermost on
};

}  // namespace d9d
