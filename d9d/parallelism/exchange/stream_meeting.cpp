#include "d9d/parallelism/exchange/stream_meeting.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {
namespace {

constexpr std::int64_t kTurns = 2;  // kinds of words, used in turn

}  // namespace

StreamMeeting::StreamMeeting(std::shared_ptr<Communicator> ranks, std::shared_ptr<LinkWatch> watch)
    : ranks_(std::move(ranks)), watch_(std::move(watch)), memory_(ranks_, *watch_, kTurns) {}

// A rank sets a word again only after the next meeting, to which the reader comes after it has set the word back. Words
// are set back only when all ranks have come: until then each rank still shows the others that it has.
void StreamMeeting::meet() {
  D9D_CHECK(can_meet(), StateError, "[parallelism::exchange] expected ranks of group '", ranks_->group().name,
            "' that share words, got: ", reason(), ". Exchange by the communicator.");
  memory_.begin();
  const PeerMemory& peers = memory_.peers();
  const std::int64_t num_ranks = ranks_->size(), rank = ranks_->rank(), kind = num_meetings_++ % kTurns;
  for (std::int64_t other = 0; other < num_ranks; ++other) {
    if (other != rank) peers.raise(memory_.word(rank, other, kind), 1);
  }
  for (std::int64_t other = 0; other < num_ranks; ++other) {
    if (other != rank) peers.wait_for(memory_.word(other, rank, kind), 1);
  }
  for (std::int64_t other = 0; other < num_ranks; ++other) {
    if (other != rank) peers.raise(memory_.word(other, rank, kind), 0);
  }
  memory_.set_last(StreamEvent::of_current_stream(ranks_->device()));
}

}  // namespace d9d
