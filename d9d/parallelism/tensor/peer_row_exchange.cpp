#include "d9d/parallelism/tensor/peer_row_exchange.h"

#include <chrono>
#include <exception>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"

namespace d9d {
namespace {

constexpr std::int64_t kSlots = 2, kAlignment = 256;
constexpr std::int64_t kWordBytes = 64;          // each word has a cache line to itself
constexpr std::uint32_t kEndOfWaits = 1U << 30;  // more than any number of blocks
// How long let_streams_pass() goes on: streams set words back, and wait for the next.
constexpr std::chrono::milliseconds kPassing{400};
constexpr std::chrono::microseconds kBetweenLooks{50};

// The bytes of the part of one rank.
std::int64_t part_bytes(std::int64_t num_elements, at::ScalarType dtype) {
  return round_up(num_elements * static_cast<std::int64_t>(at::elementSize(dtype)), kAlignment);
}

}  // namespace

PeerRowExchange::PeerRowExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch)
    : ranks_(std::move(ranks)), watch_(watch), copies_(ranks_->device()) {}

// Does not wait for other ranks if the job has failed: then the memory stays mapped until the process ends.
PeerRowExchange::~PeerRowExchange() {
  if (memory_ == nullptr) return;
  try {
    if (ranks_->has_failed()) {
      let_streams_pass([this] { return last_.is_complete(); });
    } else {
      last_.synchronize();
      memory_->leave();
    }
  } catch (const std::exception&) {  // a CUDA error, after which no stream waits
  }
  watch_.remove_link(this);
}

void PeerRowExchange::let_streams_pass(const std::function<bool()>& have_passed) const {
  if (ranks_->device().is_cpu()) return;  // a waiting thread notices a failure itself
  const auto end = std::chrono::steady_clock::now() + kPassing;
  do {
    for (std::int64_t owner = 0; owner < ranks_->size(); ++owner) {
      for (std::int64_t slot = 0; slot < kSlots; ++slot) {
        memory_->raise_at_once(word(owner, ranks_->rank(), slot), kEndOfWaits);
      }
    }
    std::this_thread::sleep_for(kBetweenLooks);
  } while (!have_passed() && std::chrono::steady_clock::now() < end);
}

bool PeerRowExchange::fits(std::int64_t num_elements, at::ScalarType dtype) {
  if (!reason_.empty()) return false;
  const std::int64_t bytes = (ranks_->size() - 1) * part_bytes(num_elements, dtype);
  if (bytes > slot_bytes_) open(bytes);
  return reason_.empty();
}

// Stays watched until all ranks have closed: a rank may fail before, and this one's stream wait for its flags. The
// current stream has waited for the copies of each exchange.
void PeerRowExchange::close() {
  if (memory_ == nullptr) return;
  memory_->close();
  watch_.remove_link(this);
  memory_.reset();
  slot_bytes_ = 0;
  ++num_closings_;
}

void PeerRowExchange::open(std::int64_t slot_bytes) {
  close();
  PeerMemoryResult opened =
      open_peer_memory(ranks_, kSlots * slot_bytes, ranks_->size() * ranks_->size() * kSlots * kWordBytes);
  memory_ = std::move(opened.memory);
  reason_ = std::move(opened.reason);
  if (memory_ == nullptr) return;
  slot_bytes_ = slot_bytes;
  num_exchanges_ = 0;
  // The thread of the watch cannot know when: it makes no device calls, and last_ belongs to other threads.
  watch_.add_link(this, ranks_, [this] { let_streams_pass([] { return false; }); });
}

std::int64_t PeerRowExchange::next_slot() const { return num_exchanges_++ % kSlots; }

std::int64_t PeerRowExchange::word(std::int64_t owner, std::int64_t reader, std::int64_t slot) const {
  return ((owner * ranks_->size() + reader) * kSlots + slot) * kWordBytes;
}

void PeerRowExchange::read(const at::Tensor& target, std::int64_t owner, std::int64_t slot, std::int64_t index,
                           std::int64_t offset) const {
  memory_->wait_for(word(owner, ranks_->rank(), slot), static_cast<std::uint32_t>(index + 1));
  memory_->read(target, owner, slot * slot_bytes_ + offset);
}

PeerRowExchange::Arriving PeerRowExchange::begin_gather(const at::Tensor& shard) const {
  ranks_->throw_if_failed();
  const at::Tensor own = shard.contiguous();
  const std::int64_t num_ranks = ranks_->size(), rank = ranks_->rank(), slot = next_slot();
  const std::int64_t batch = own.size(0), positions = own.size(1);
  const auto num_bytes = static_cast<std::int64_t>(own.nbytes());
  memory_->own().narrow(0, slot * slot_bytes_, num_bytes).copy_(own.view(-1).view(at::kByte));
  for (std::int64_t i = 1; i < num_ranks; ++i) memory_->raise(word(rank, (rank + i) % num_ranks, slot), 1);

  Arriving rows{
      .own = own, .whole = at::empty({batch, num_ranks * positions, own.size(2)}, own.options()), .events = {}};
  last_ = copies_.run([&] {
    for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
      rows.whole[sequence].narrow(0, rank * positions, positions).copy_(own[sequence]);
    }
    for (std::int64_t i = 1; i < num_ranks; ++i) {
      const std::int64_t owner = (rank + num_ranks - i) % num_ranks;
      for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
        const at::Tensor target = rows.whole[sequence].narrow(0, owner * positions, positions);
        read(target, owner, slot, /*index=*/0, sequence * static_cast<std::int64_t>(target.nbytes()));
        rows.events.push_back(StreamEvent::of_current_stream(ranks_->device()));
      }
      memory_->raise(word(owner, rank, slot), 0);
    }
  });
  return rows;
}

at::Tensor PeerRowExchange::gather(const at::Tensor& shard, const Block& arrived) const {
  const at::NoGradGuard no_grad;
  const Arriving rows = begin_gather(shard);
  const std::int64_t num_ranks = ranks_->size(), rank = ranks_->rank();
  const std::int64_t batch = rows.own.size(0), positions = rows.own.size(1), all = num_ranks * positions;
  for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
    arrived(sequence * all + rank * positions, rows.own[sequence]);
  }
  for (std::int64_t i = 1; i < num_ranks; ++i) {
    const std::int64_t first = (rank + num_ranks - i) % num_ranks * positions;
    for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
      rows.events[static_cast<std::size_t>((i - 1) * batch + sequence)].wait();
      arrived(sequence * all + first, rows.whole[sequence].narrow(0, first, positions));
    }
  }
  last_.wait();
  return rows.whole;
}

at::Tensor PeerRowExchange::gather_sequences(const at::Tensor& shard, const Block& complete) const {
  const at::NoGradGuard no_grad;
  const Arriving rows = begin_gather(shard);
  const std::int64_t batch = rows.whole.size(0), all = rows.whole.size(1);
  for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
    rows.events[static_cast<std::size_t>((ranks_->size() - 2) * batch + sequence)].wait();  // of the last other rank
    complete(sequence * all, rows.whole[sequence]);
  }
  last_.wait();
  return rows.whole;
}

at::Tensor PeerRowExchange::scatter(const Summand& summand, const Block& write,
                                    const std::function<void()>& meanwhile) const {
  ranks_->throw_if_failed();
  const at::NoGradGuard no_grad;
  const std::int64_t num_ranks = ranks_->size(), rank = ranks_->rank(), slot = next_slot();
  const std::int64_t batch = summand.whole[0], all = summand.whole[1], positions = all / num_ranks;
  const at::Tensor parts = at::empty({num_ranks, batch, positions, summand.whole[2]}, summand.options);
  const std::int64_t block_bytes = static_cast<std::int64_t>(parts[0][0].nbytes());
  const std::int64_t bytes_of_part = part_bytes(parts[0].numel(), parts.scalar_type());
  // The byte offset of the part for `reader`, which is the (i - 1)-th of the slot's: reader = owner + i.
  const auto offset_of = [&](std::int64_t i, std::int64_t sequence) {
    return (i - 1) * bytes_of_part + sequence * block_bytes;
  };
  for (std::int64_t i = 1; i < num_ranks; ++i) {
    const std::int64_t reader = (rank + i) % num_ranks, owner = (rank + num_ranks - i) % num_ranks;
    for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
      const at::Tensor out = memory_->own()
                                 .narrow(0, slot * slot_bytes_ + offset_of(i, sequence), block_bytes)
                                 .view(parts.scalar_type())
                                 .view({positions, summand.whole[2]});
      write(sequence * all + reader * positions, out);
      memory_->raise(word(rank, reader, slot), static_cast<std::uint32_t>(sequence + 1));
      // Queued after the flag of this block, which the other rank may wait for: whichever streams share a queue of the
      // device, no rank's flag is behind a wait for a later one.
      last_ = copies_.run([&] {
        read(parts[owner][sequence], owner, slot, sequence, offset_of(i, sequence));
        if (sequence + 1 == batch) memory_->raise(word(owner, rank, slot), 0);
      });
    }
  }
  for (std::int64_t sequence = 0; sequence < batch; ++sequence)
    write(sequence * all + rank * positions, parts[rank][sequence]);
  meanwhile();
  last_.wait();
  return num_ranks == 2 ? parts[0] + parts[1] : parts.sum(0);
}

}  // namespace d9d
