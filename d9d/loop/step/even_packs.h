// Reads packs so that all ranks have equally many microbatches in each pack, as collectives in forwards need. Ranks
// whose data ends earlier, or whose packs are smaller, get copies of a microbatch whose results do not count.
//
// Example
//   EvenPacks packs(context, reader, "the evaluation set 'validation'");
//   while (true) {
//     EvenPack next = packs.next({.signal = interrupt.signal()});
//     if (next.stops || next.is_end) break;
//     executor.run(stages_of(next.pack), std::ssize(next.pack.microbatches));
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "d9d/core/device/side_stream.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/step/forward_stage.h"
#include "d9d/loop/step/pack_reader.h"
#include "d9d/loop/step/rank_votes.h"

namespace d9d {

// A pack of this rank, and what all ranks said before it.
struct EvenPack {
  ForwardPack pack;     // with inputs; empty if `stops` or `is_end`, or if it is empty on all ranks
  bool is_end = false;  // no rank has data left
  bool stops = false;   // a rank has a signal or asks to stop
  int signal = 0;       // SIGINT or SIGTERM of a rank; 0: none
};

class EvenPacks {
 public:
  // Context, packs and spare are borrowed. data: "the evaluation set 'validation'", for errors. spare: gives a
  // microbatch to a rank that has none; null: such a rank is an error. Reads the first pack, and goes back before it.
  EvenPacks(const DistContext& context, PackReader& packs, std::string data, PackReader* spare = nullptr);

  // Collective over the job. Reads the next pack of this rank, exchanges numbers of microbatches with all ranks, and
  // builds the inputs. votes: signal and asks_to_stop of this rank. The host waits for the other ranks, but not for the
  // device. Throws StateError if ranks that compute microbatches together have different numbers of them.
  [[nodiscard]] EvenPack next(RankVotes votes);
  void rewind();                                        // to the start; frees packs that were read ahead
  void skip_to(std::int64_t index) { index_ = index; }  // the index of the next pack, where the stream continues

 private:
  // own: the number of microbatches of this rank plus 1, as in the votes; 0: no pack.
  void check_equal(const JobVotes& votes, std::int64_t own) const;
  void complete(ForwardPack& pack, std::size_t num_microbatches) const;

  const DistContext& context_;
  PackReader& packs_;
  const std::string data_;
  const SideStream side_;
  const nlohmann::json start_;
  std::unique_ptr<AnyMicrobatch> filler_;
  std::int64_t index_ = 0;
};

}  // namespace d9d
