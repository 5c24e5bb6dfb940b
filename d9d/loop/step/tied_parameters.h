// Parameters that several stages of a pipeline have under one name, such as an embedding that the head uses too. Each
// stage computes with its own tensor. The gradients of all stages are summed, so that the optimiser of every rank takes
// the same step. Only one rank counts the parameter, and checkpoints contain it once.
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
  // Collective over the ranks of a pipeline. stages: those of this rank, with storage and layouts. Creates a
  // communicator for each group of ranks that share trained parameters. Throws ConfigError on all ranks, naming the
  // parameter, if its dtype, shape or layout differs, or if only some train it.
  TiedParameters(const DistContext& context, const std::vector<std::shared_ptr<Module>>& stages);

  // Local. Sets the copies on this rank to the values of the first stage. Called after the optimiser's step and before
  // the first forward of the next step. While this object lives, stale copies are also updated before each forward of a
  // stage outside of a step, such as in an evaluation, since the program may have changed parameters in between.
  void update_copies() const { d9d::update_copies(copies_->all); }
  // Local. Called before each forward of a step; the first call updates the copies. The step ends with sum_gradients()
  // or end_step().
  void begin_step() const;
  void end_step() const { copies_->are_in_step = false; }
  // Collective over the ranks that have the parameters. Sums stored().grad() of each parameter over all stages that
  // have it. On a rank with several of these stages only the first gets the sum; .grad() of the copies does not change.
  void sum_gradients() const;

  // The names of all tied parameters of the pipeline, in alphabetical order.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  // Whether an earlier rank of the pipeline has the parameter too, and counts it.
  [[nodiscard]] bool is_counted_before(const ParameterPtr& parameter) const {
    return counted_before_.contains(parameter.get());
  }

 private:
  struct OverRanks {
    std::shared_ptr<Communicator> ranks;
    std::vector<ParameterPtr> parameters;  // trained ones only
  };

  std::vector<std::string> names_;
  struct Copies {
    std::vector<ParameterCopy> all;
    bool are_in_step = false;
  };
  class UpdateBetweenSteps;  // a hook of the stages that have copies

  std::shared_ptr<Copies> copies_;
  std::vector<OverRanks> over_ranks_;
  std::unordered_set<const Parameter*> counted_before_;
};

}  // namespace d9d
