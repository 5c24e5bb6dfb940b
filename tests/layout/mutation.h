// Faults that a library could have, planted from outside: in the layouts that parameters declare, in what the
// communicators do, in how microbatches are numbered. The fuzzer must find each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "d9d/core/communicator/world.h"
#include "d9d/modules/module.h"

#include "tests/layout/layout_job.h"

namespace d9d::test {

enum class Mutation : std::uint8_t {
  kNone,
  kGradientPlacement,  // the first gradient that is declared Partial is declared Replicate
  kReplicaMean,        // replicated gradients are averaged
  kShardMean,          // sharded gradients are averaged
  kReplicaTwice,       // replicated gradients are summed twice
  kReplicaDropped,     // the first sum of replicated gradients of each group is left out
  kAuxiliaryDropped,   // the auxiliary loss counts the tokens of one rank
  kBalanceDropped,     // the loss-free balance counts the tokens of one rank
  kNormDropped,        // the norm of gradients is that of one rank's shards
  kPaddingCounted,     // microbatches do not say which positions are padding
  kTotalsMean,         // losses and weights are averaged over ranks
  kLocalMicrobatch,    // dropout gets the number of a microbatch on its rank instead of the global one
  kSeedOfRank,         // dropout has another seed on each rank
  kStageSumEarly,      // a stage's gradients are summed over ranks after its first microbatch
  kTiedDropped,        // the gradients of an embedding that two stages have are not summed
  kAdapterSeed,        // the last rank draws its adapters from another seed
  kNormsOfPart,        // magnitudes divide by norms of the columns that a rank has
  kKeysUnsummed,       // ranks do not sum gradients of keys and values that they have whole
  kPreferenceOfPart,   // preferences compare the positions that a rank has
  kPooledOfPart,       // pooled heads use the positions that a rank has
  kSnapshotOfPart,     // snapshots are means over the positions that a rank has
  kBufferDropped,      // a layer's own buffer follows the activations of one rank
  kFreezingUnseen,     // a parameter that is frozen late is not seen
  kUnequalCut,         // ranks train as many microbatches as the one that has fewest
  kUnequalUnseen,      // ranks that depend on each other do not compare how many microbatches they have
  kMessageStale,       // a stage gets a message of the one before it a second time instead of the next
  kMessageRounded,     // a stage gets hidden states that were rounded to float32
  kAuxiliaryOfStage,   // a stage forgets the auxiliary loss of the layers before it
  kLostAsleep,         // a rank's parameters lose their values while the job sleeps
  kGroupsUnseen,       // the last rank's optimiser does not see the groups of parameters
  kOwnerSilent,        // an owner of matrices leaves out its updates
  kAveragesStale,      // the last rank does not average the first step
  kEnterSumDropped,    // gradients of what a tensor-parallel block gathers are not summed over its ranks
  kEnterOwnPositions,  // a tensor-parallel block sees zeros for the positions of other ranks
  kLeaveSumDropped,    // what leaves a tensor-parallel block is the summand of one rank
  kLeaveOwnGradient,   // a tensor-parallel block gets gradients of one rank's positions
  kLossOfPart,         // the loss sums the vocabulary of one rank
  kHeadsRolled,        // heads that ranks exchanged for positions come back in the order of another rank
  kAnnouncedDtype,     // a stage of a job of mixed dtypes announces hidden states of the other one
  kContextSumDropped,  // gradients of keys and values are those of the queries of one context-parallel rank
  kContextOwnKeys,     // queries see zeros for the keys and values of other context-parallel ranks
  kPositionsOfNext,    // a context-parallel rank rotates by the positions of the next one
  kLabelsOfNext,       // a context-parallel rank has the labels of the next one
  kDropoutOfHalf,      // the halves of the positions that a rank has swap their dropout masks
  kFirstQueryLate,     // attention believes the queries of a context-parallel rank later than they are
  kBoundaryLate,       // the first document of packed ones has the first position of the second
  kBoundaryOfRank,     // the same on the last context-parallel rank only, which attends by a ring
  kRecomputedOfOther,  // a recomputed layer starts from what it kept of the microbatch before
};
[[nodiscard]] const char* name_of(Mutation mutation);
[[nodiscard]] const char* describe(Mutation mutation);
[[nodiscard]] const std::vector<Mutation>& all_mutations();  // all except kNone

// What a rank is currently doing.
enum class Phase : std::uint8_t { kBuild, kForward, kBackward, kSum, kFinish };
struct PhaseOfRank {
  Phase phase = Phase::kBuild;
  int num_sums = 0;  // all_reduces since kSum began
  std::vector<std::int64_t> tensor_parallel_ranks = {};
  std::vector<std::int64_t> context_parallel_ranks = {};
  void begin(Phase next) {
    phase = next;
    num_sums = 0;
  }
};

// The ranks of `world` with communicators that have the mutation. Borrows both arguments.
[[nodiscard]] std::shared_ptr<World> mutated(World& world, Mutation mutation, PhaseOfRank& phase);

// Whether the mutation can affect the case; otherwise it need not be run.
[[nodiscard]] bool can_show(Mutation mutation, const LayoutCase& drawn);

// To be called before materialize, of a model with a layout: applies kGradientPlacement and kKeysUnsummed.
void mutate_placements(const Module& module, Mutation mutation);
// Likewise kDropoutOfHalf, kFirstQueryLate, kBoundaryLate and kBoundaryOfRank. is_last: of its context-parallel ranks.
void mutate_blocks(Module& module, Mutation mutation, bool is_last);

}  // namespace d9d::test
