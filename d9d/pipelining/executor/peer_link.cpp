#include "d9d/pipelining/executor/peer_link.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/pipelining/executor/message_layout.h"

namespace d9d {
namespace {

constexpr std::int64_t kSlotAlignment = 256;
// Byte offsets: from the flags of one rank to those of the other rank, and from the first flag of a rank to its other
// three flags. Each flag has a cache line to itself.
constexpr std::int64_t kWordsOfRank = 256, kTakenOut = 64, kReceiving = 128, kSending = 192;
constexpr std::int64_t kNotes = 2 * kWordsOfRank;
// A flag that is this far above the number of the last message ends every wait for the flag, since no wait is for a
// message so far ahead.
constexpr std::uint32_t kEndOfWaits = 1U << 30;
// How long a failing rank keeps ending the waits of its streams: longer than a copy takes, shorter than a supervisor
// waits.
constexpr std::chrono::milliseconds kPassing{1000};
constexpr std::chrono::microseconds kBetweenLooks{50};

// Byte offsets of the flags of `rank` that the other rank sets.
std::int64_t arrived_at(std::int64_t rank) { return rank * kWordsOfRank; }
std::int64_t taken_out_of(std::int64_t rank) { return rank * kWordsOfRank + kTakenOut; }
// Byte offsets of the flags of `rank` that its own streams set when they reach the wait for a message or for a free
// receive buffer.
std::int64_t receiving_on(std::int64_t rank) { return rank * kWordsOfRank + kReceiving; }
std::int64_t sending_on(std::int64_t rank) { return rank * kWordsOfRank + kSending; }

}  // namespace

PeerMemoryResult PeerLink::open(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes) {
  return open_peer_memory(ranks, num_bytes, kNotes + StepNotes::kBytes);
}

PeerLink::PeerLink(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> memory,
                   std::int64_t num_inbox_slots, LinkWatch& watch)
    : ranks_(std::move(ranks)),
      memory_(std::move(memory)),
      num_slots_(std::max<std::int64_t>(num_inbox_slots, 1)),
      watch_(watch),
      sends_(ranks_->device()),
      notes_(std::in_place, memory_->shared() + kNotes, ranks_->rank()) {
  add_to_watch();
}

// Waits until the sends and receives of this rank have finished. If the step or the job has failed, does not wait for
// the other rank: ends the waits of this rank's own streams, which nothing else would end, and leaves the other rank's
// memory mapped until the process ends.
PeerLink::~PeerLink() {
  if (memory_ == nullptr) return;
  try {
    if (has_given_up_ || std::uncaught_exceptions() > num_exceptions_) {
      let_streams_pass();
    } else {
      last_sent_.synchronize();
      last_received_.synchronize();
      memory_->leave();
    }
  } catch (const std::exception&) {  // a CUDA error, after which no stream waits
  }
  watch_.remove_link(this);
}

void PeerLink::add_to_watch() {
  watch_.add_link(this, ranks_, [this] { end_waits(); });
}

void PeerLink::end_waits() const {
  if (ranks_->device().is_cpu()) return;  // a waiting thread notices a failure itself
  memory_->raise_at_once(arrived_at(ranks_->rank()), num_received_ + kEndOfWaits);
  memory_->raise_at_once(taken_out_of(ranks_->rank()), num_sent_ + kEndOfWaits);
}

// Repeats end_waits(), because the other rank may still run and set the flags back.
void PeerLink::let_streams_pass() const {
  const auto end = std::chrono::steady_clock::now() + kPassing;
  do {
    end_waits();
    std::this_thread::sleep_for(kBetweenLooks);
  } while (!(last_sent_.is_complete() && last_received_.is_complete()) && std::chrono::steady_clock::now() < end);
}

std::int64_t PeerLink::inbox_bytes(std::int64_t num_slots, std::int64_t message_bytes) {
  return num_slots * round_up(message_bytes, kSlotAlignment);
}

void PeerLink::begin_step(std::int64_t num_bytes, const std::string& transfers) {
  ranks_->throw_if_failed();
  D9D_CHECK(!has_given_up_, StateError,
            "[pipelining::executor] expected a pipeline whose steps have all succeeded, got one with a failed step: ",
            "messages of that step may still be in flight. Make another PipelineExecutor.");
  if (memory_ == nullptr) open_inbox(/*slot_bytes=*/0);  // to compare notes before sizes
  notes_->write(transfers);
  has_compared_ = false;
  if (num_bytes <= slot_bytes_) return;
  compare_notes();  // if notes differ, throws before the collectives
  close();
  open_inbox(round_up(num_bytes, kSlotAlignment));
}

void PeerLink::compare_notes() {
  if (has_compared_) return;
  const LinkWatch::Wait wait = watch_.begin(this, "the step of", {});
  while (!notes_->is_there()) {
    ranks_->throw_if_rank_is_gone();
    std::this_thread::sleep_for(kBetweenLooks);
  }
  watch_.end(wait);
  notes_->compare();
  has_compared_ = true;
}

void PeerLink::close() {
  if (memory_ == nullptr) return;
  last_sent_.wait();
  memory_->close();
  watch_.remove_link(this);  // not earlier: the other rank may fail before it closes, and a stream wait for its flags
  notes_.reset();
  memory_.reset();
  has_compared_ = true;
}

void PeerLink::open_inbox(std::int64_t slot_bytes) {
  slot_bytes_ = slot_bytes;
  PeerMemoryResult opened = open(ranks_, std::max<std::int64_t>(1, inbox_bytes(num_slots_, slot_bytes_)));
  D9D_CHECK(opened.memory != nullptr, StateError, "[pipelining::executor] expected an inbox of ", num_slots_,
            " messages of ", slot_bytes_, " bytes from rank ",
            ranks_->group().ranks[static_cast<std::size_t>(1 - ranks_->rank())], ", got none: ", opened.reason,
            ". Use \"communicator\" for trainer.pipelining.messages.");
  memory_ = std::move(opened.memory);
  notes_.emplace(memory_->shared() + kNotes, ranks_->rank());
  num_sent_ = 0;
  num_received_ = 0;
  add_to_watch();
}

void PeerLink::finish() {
  compare_notes();
  last_sent_.wait();
  unsent_.wait_for_all();
}

// Makes the current stream set the flag `reached`, and LinkWatch time the wait for `over` that the caller queues next.
void PeerLink::begin_wait(const std::string& what, Raised reached, Raised over) {
  memory_->raise(reached.word, reached.value);
  watch_.begin(this, what,
               {.is_reached = [this, reached] { return memory_->is_raised(reached.word, reached.value); },
                .is_over = [this, over] { return memory_->is_raised(over.word, over.value); }});
}

std::int64_t PeerLink::slot_of(std::uint32_t number) const {
  return (static_cast<std::int64_t>(number - 1) % num_slots_) * slot_bytes_;
}

void PeerLink::send(const std::string& what, const std::vector<at::Tensor>& leaves) {
  ranks_->throw_if_failed();
  const std::uint32_t number = ++num_sent_;
  const std::int64_t peer = 1 - ranks_->rank();
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& leaf : leaves) contiguous.push_back(contiguous_values(leaf));
  unsent_.wait_for_all_but(static_cast<std::size_t>(num_slots_ - 1));  // leaves room for this message
  last_sent_ = sends_.run([&] {
    if (number > num_slots_) {
      const std::uint32_t oldest = number - static_cast<std::uint32_t>(num_slots_);
      begin_wait(cat("room for ", what, " in the inbox of"), {sending_on(ranks_->rank()), number},
                 {taken_out_of(ranks_->rank()), oldest});
      memory_->wait_for(taken_out_of(ranks_->rank()), oldest);
    }
    std::int64_t offset = slot_of(number);
    for (const at::Tensor& leaf : contiguous) {
      memory_->write(leaf, peer, offset);
      offset += message_bytes({leaf});
    }
    memory_->raise(arrived_at(peer), number);
  });
  unsent_.keep(std::move(contiguous), last_sent_);
}

std::vector<at::Tensor> PeerLink::receive(const std::string& what, const std::vector<at::Tensor>& like) {
  ranks_->throw_if_failed();
  const std::uint32_t number = ++num_received_;
  const at::Tensor message = at::empty({message_bytes(like)}, at::TensorOptions(ranks_->device()).dtype(at::kByte));
  begin_wait(cat(what, " from"), {receiving_on(ranks_->rank()), number}, {arrived_at(ranks_->rank()), number});
  memory_->wait_for(arrived_at(ranks_->rank()), number);
  memory_->read(message, ranks_->rank(), slot_of(number));
  memory_->raise(taken_out_of(1 - ranks_->rank()), number);
  last_received_ = here();
  return parts_of(message, like);
}

}  // namespace d9d
