// Parameters that several stages of a pipeline have under one name, as the embedding that a head reads too. Each stage
// computes with its own tensor. All get the sum of the gradients, so that every optimiser takes the same step; one rank
// counts the parameter, and checkpoints have it once.
//
// Example
//   const TiedParameters tied(context, stages);
//   tied.begin_step();              // before the first forward
//   ...                             // gradients of each stage are summed over data-parallel ranks
//   tied.sum_gradients();           // before their norm
//   optimizer.step(...);
//   tied.update_copies();
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/step/local_stages.h"

namespace d9d {

class TiedParameters {
 public:
  // Collective over the ranks of a pipeline. stages: those of this rank, with storage and layouts. Makes a communicator
  // for the ranks that have a parameter together, and none for others. Throws ConfigError on all ranks, naming the
  // parameter, if its dtype, shape or layout differs, or if only some train it.
  TiedParameters(const DistContext& context, const std::vector<std::shared_ptr<Module>>& stages);

  // Local. Copies on this rank get the values of the first stage's: after the optimiser's step, before the first
  // forward of the next, and, while this object lives, before each forward of a stage outside of a step, as of an
  // evaluation, since the program may have changed parameters in between.
  void update_copies() const { d9d::update_copies(copies_->all); }
  // Local. Before each forward of a step; the first updates the copies. A step ends with the sum of its gradients, or
  // with end_step().
  void begin_step() const;
  void end_step() const { copies_->are_in_step = false; }
  // Collective over the ranks that have the parameters. Adds up stored().grad(); copies on one rank keep their own.
  void sum_gradients() const;

  // Of the whole pipeline, in alphabetical order.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  // Whether a rank before this one in the pipeline has the parameter too, and counts it.
  [[nodiscard]] bool is_counted_before(const ParameterPtr& parameter) const {
    return counted_before_.contains(parameter.get());
  }

 private:
  struct OverRanks {
    std::shared_ptr<Communicator> ranks;
    std::vector<ParameterPtr> parameters;  // trained
  };

  std::vector<std::string> names_;
  struct Copies {
    std::vector<ParameterCopy> all;
    bool are_in_step = false;
  };
  class UpdateBetweenSteps;  // of the stages that have copies

  std::shared_ptr<Copies> copies_;
  std::vector<OverRanks> over_ranks_;
  std::unordered_set<const Parameter*> counted_before_;
};

}  // namespace d9d
