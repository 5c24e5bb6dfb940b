#include "d9d/pipelining/executor/peer_link.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/pipelining/executor/message_layout.h"

namespace d9d {
namespace {

constexpr std::int64_t kArrived = 0;
constexpr std::int64_t kTakenOut = 64;
constexpr std::int64_t kSlotAlignment = 256;
// Added to a word, it ends each wait for it: fewer messages are on their way.
constexpr std::uint32_t kEndOfWaits = 1U << 30;

}  // namespace

PeerLink::PeerLink(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> memory,
                   std::int64_t num_inbox_slots, LinkWatch& watch)
    : ranks_(std::move(ranks)),
      memory_(std::move(memory)),
      num_slots_(std::max<std::int64_t>(num_inbox_slots, 1)),
      watch_(watch),
      sends_(ranks_->device()),
      ends_(ranks_->device()) {
  watch_streams();
}

// What was sent leaves first. A rank that fails, or whose job has failed, does not wait for the other: a stream that
// waits would outlive the failure.
PeerLink::~PeerLink() {
  try {
    if (std::uncaught_exceptions() > num_exceptions_) end_waits();
    last_sent_.synchronize();
  } catch (const std::exception&) {  // of CUDA: then nothing waits
  }
  watch_.remove_link(this);
}

// A thread that waits learns of a failure itself.
void PeerLink::watch_streams() {
  if (!ranks_->device().is_cpu()) watch_.add_link(this, ranks_, [this] { end_waits(); });
}

void PeerLink::end_waits() const {
  (void)ends_.run_at_once([&] {
    memory_->raise(ranks_->rank(), kArrived, num_received_ + kEndOfWaits);
    memory_->raise(ranks_->rank(), kTakenOut, num_sent_ + kEndOfWaits);
  });
}

std::int64_t PeerLink::inbox_bytes(std::int64_t num_slots, std::int64_t message_bytes) {
  return kHeaderBytes + num_slots * round_up(message_bytes, kSlotAlignment);
}

void PeerLink::reserve(std::int64_t num_bytes) {
  if (num_bytes <= slot_bytes_) return;
  watch_.remove_link(this);
  last_sent_.wait();
  memory_->close();
  slot_bytes_ = round_up(num_bytes, kSlotAlignment);
  PeerMemoryResult opened = open_peer_memory(ranks_, inbox_bytes(num_slots_, slot_bytes_));
  D9D_CHECK(opened.memory != nullptr, StateError, "[pipelining::executor] expected an inbox of ", num_slots_,
            " messages of ", slot_bytes_, " bytes from rank ",
            ranks_->group().ranks[static_cast<std::size_t>(1 - ranks_->rank())], ", got none: ", opened.reason,
            ". Use \"communicator\" for trainer.pipelining.messages.");
  memory_ = std::move(opened.memory);
  num_sent_ = 0;
  num_received_ = 0;
  watch_streams();
}

std::int64_t PeerLink::slot_of(std::uint32_t number) const {
  return kHeaderBytes + (static_cast<std::int64_t>(number - 1) % num_slots_) * slot_bytes_;
}

void PeerLink::send(const std::string& what, const std::vector<at::Tensor>& leaves) {
  ranks_->throw_if_failed();
  const std::uint32_t number = ++num_sent_;
  const std::int64_t peer = 1 - ranks_->rank();
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& leaf : leaves) contiguous.push_back(contiguous_values(leaf));
  const LinkWatch::Wait wait = watch_.begin(cat("room for ", what, " in the inbox of"), *ranks_);
  last_sent_ = sends_.run([&] {
    if (number > num_slots_) memory_->wait_for(kTakenOut, number - static_cast<std::uint32_t>(num_slots_));
    std::int64_t offset = slot_of(number);
    for (const at::Tensor& leaf : contiguous) {
      keep_for_current_stream(leaf);
      memory_->write(leaf, peer, offset);
      offset += message_bytes({leaf});
    }
    memory_->raise(peer, kArrived, number);
  });
  watch_.end(wait, last_sent_);
}

std::vector<at::Tensor> PeerLink::receive(const std::string& what, const std::vector<at::Tensor>& like) {
  ranks_->throw_if_failed();
  const std::uint32_t number = ++num_received_;
  const at::Tensor message = at::empty({message_bytes(like)}, at::TensorOptions(ranks_->device()).dtype(at::kByte));
  const LinkWatch::Wait wait = watch_.begin(cat(what, " from"), *ranks_);
  memory_->wait_for(kArrived, number);
  memory_->read(message, ranks_->rank(), slot_of(number));
  memory_->raise(1 - ranks_->rank(), kTakenOut, number);
  watch_.end(wait, StreamEvent::of_current_stream(ranks_->device()));
  return parts_of(message, like);
}

}  // namespace d9d
