// Checks that the ranks which compute the layers of a microbatch together have the same number of microbatches in a
// step. Otherwise one rank would wait in a collective that the others never begin.
//
// Ranks depend on each other in every microbatch if they compute it together (pipeline, context and tensor parallelism)
// or if they hold parts of one parameter (FSDP, expert and tensor parallelism). Other ranks, such as replicas,
// communicate only when gradients are summed at the end of a step, and may have different numbers of microbatches.
//
// Example
//   EqualMicrobatches equal(context, *module);
//   equal.check(/*step=*/0, pack.size());                      // gathers the numbers on the host
//   ...                                                        // the step; it also tells the sizes of the next packs
//   equal.tell_next(step.next_microbatches);
//   equal.check(1, next_pack.size());                          // local, if all sizes are known
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/modules/module.h"

namespace d9d {

class EqualMicrobatches {
 public:
  // Local. module: this rank's stages, whose parameters have layouts.
  EqualMicrobatches(const DistContext& context, const Module& module);

  // Called before the first forward of a step. own: the number of microbatches of this rank. Collective over all ranks,
  // unless tell_next() has given the numbers of all ranks. Throws StateError on all ranks if a rank has no microbatch,
  // or if ranks that depend on each other have different numbers.
  void check(std::int64_t step, std::int64_t own);
  // of_ranks: the number of microbatches of each rank in the next step, 0 where it is not known yet; the same on all
  // ranks. Empty: no number is known.
  void tell_next(const std::vector<std::int64_t>& of_ranks) { next_ = of_ranks; }

 private:
  // For each group that a rank belongs to: the first rank of the group, and why its ranks depend on each other.
  using Firsts = std::map<std::int64_t, std::string>;
  [[nodiscard]] std::vector<std::int64_t> gather(std::int64_t own);

  DeviceMesh ranks_;
  Firsts own_firsts_;
  std::vector<Firsts> firsts_;  // of all ranks; empty before the first gather()
  std::vector<std::int64_t> next_;
};

}  // namespace d9d
