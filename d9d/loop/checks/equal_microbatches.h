// Whether the ranks that compute a microbatch's layers together have as many microbatches in a step. Where they do not,
// one would wait for the others in a collective that they never begin.
//
// Ranks depend on each other in every microbatch if they share it (pipeline, context and tensor parallelism), or if
// they hold parts of one parameter (FSDP, expert and tensor parallelism). Others, such as replicas, meet in the sums of
// a step alone and may have different numbers.
//
// Example
//   EqualMicrobatches equal(context, *module);
//   equal.check(/*step=*/0, pack.size());                      // gathers the numbers on the host
//   ...                                                        // the step; its sums also say what the next packs have
//   equal.tell_next(step.next_microbatches);
//   equal.check(1, next_pack.size());                          // local, if all ranks knew
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
  // Local. module: this rank's stages, laid out.
  EqualMicrobatches(const DistContext& context, const Module& module);

  // Before the first forward of a step of which this rank has `own` microbatches. Collective over all ranks, unless
  // tell_next() has said what all of them have. StateError on all ranks if one has no microbatch, or if ranks that
  // depend on each other have different numbers.
  void check(std::int64_t step, std::int64_t own);
  // The same on all ranks: by rank, the number of microbatches of the next step; 0: not known yet. Empty: none is.
  void tell_next(const std::vector<std::int64_t>& of_ranks) { next_ = of_ranks; }

 private:
  // Of a rank: the first ranks of the groups that it is in, and why these belong together.
  using Firsts = std::map<std::int64_t, std::string>;
  [[nodiscard]] std::vector<std::int64_t> gather(std::int64_t own);

  DeviceMesh ranks_;
  Firsts own_firsts_;
  std::vector<Firsts> firsts_;  // of all ranks; empty before the first gather()
  std::vector<std::int64_t> next_;
};

}  // namespace d9d
