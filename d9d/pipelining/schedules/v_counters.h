// Appends actions to the program of a rank that has two stages of a V. Counts the actions of each kind on each stage:
// the count is the microbatch of the next action.
//
// Example
//   VCounters v(stages, rank);
//   v.forward(v.early());     // 0F0
//   v.forward(v.early());     // 0F1
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "d9d/pipelining/program/action.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d::detail {

class VCounters {
 public:
  struct Stage {
    StageIndex index;
    std::int64_t num_forwards = 0;
    std::int64_t num_backwards = 0;  // B and I
    std::int64_t num_weights = 0;
  };

  VCounters(const StagePlacement& stages, std::int64_t rank)
      : early_{.index = stages.stages_of(rank).front()}, late_{.index = stages.stages_of(rank).back()} {}

  Stage& early() { return early_; }  // the rank's stage on the way to the last rank
  Stage& late() { return late_; }    // the rank's stage on the way back to rank 0

  void forward(Stage& stage) { program_.emplace_back(next_forward(stage)); }
  void backward(Stage& stage) { program_.emplace_back(next_backward(stage)); }
  void backward_input(Stage& stage) {
    program_.emplace_back(BackwardInputAction{stage.index, {stage.num_backwards++}});
  }
  void backward_weight(Stage& stage) {
    program_.emplace_back(BackwardWeightAction{stage.index, {stage.num_weights++}});
  }
  // Does not change num_weights.
  void backward_weight(StageIndex stage, MicrobatchIndex microbatch) {
    program_.emplace_back(BackwardWeightAction{stage, microbatch});
  }
  void forward_and_backward(Stage& forwards, Stage& backwards) {
    program_.emplace_back(ComposedAction{.parts = {next_forward(forwards), next_backward(backwards)}});
  }

  [[nodiscard]] RankProgram take() { return std::move(program_); }

 private:
  ForwardAction next_forward(Stage& stage) { return {stage.index, {stage.num_forwards++}}; }
  BackwardAction next_backward(Stage& stage) { return {stage.index, {stage.num_backwards++}}; }

  Stage early_;
  Stage late_;
  RankProgram program_;
};

}  // namespace d9d::detail
