#include "d9d/parallelism/tensor/peer_row_exchange.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/rounding.h"

namespace d9d {
namespace {

constexpr std::int64_t kSlots = 2, kAlignment = 256;

// The bytes of the part of one rank.
std::int64_t part_bytes(std::int64_t num_elements, at::ScalarType dtype) {
  return round_up(num_elements * static_cast<std::int64_t>(at::elementSize(dtype)), kAlignment);
}

}  // namespace

PeerRowExchange::PeerRowExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch)
    : ranks_(std::move(ranks)), copies_(ranks_->device()), memory_(ranks_, watch, kSlots) {}

bool PeerRowExchange::fits(std::int64_t num_elements, at::ScalarType dtype) {
  const std::int64_t bytes = std::max(slot_bytes_, (ranks_->size() - 1) * part_bytes(num_elements, dtype));
  if (!memory_.fits(kSlots * bytes)) return false;
  slot_bytes_ = bytes;
  return true;
}

std::int64_t PeerRowExchange::next_slot() const { return num_exchanges_++ % kSlots; }

void PeerRowExchange::read(const at::Tensor& target, std::int64_t owner, std::int64_t slot, std::int64_t index,
                           std::int64_t offset) const {
  memory_.peers().wait_for(memory_.word(owner, ranks_->rank(), slot), static_cast<std::uint32_t>(index + 1));
  memory_.peers().read(target, owner, slot * slot_bytes_ + offset);
}

PeerRowExchange::Arriving PeerRowExchange::begin_gather(const at::Tensor& shard) const {
  memory_.begin();
  const at::Tensor own = shard.contiguous();
  const std::int64_t num_ranks = ranks_->size(), rank = ranks_->rank(), slot = next_slot();
  const std::int64_t batch = own.size(0), positions = own.size(1);
  const auto num_bytes = static_cast<std::int64_t>(own.nbytes());
  memory_.peers().own().narrow(0, slot * slot_bytes_, num_bytes).copy_(own.view(-1).view(at::kByte));
  for (std::int64_t i = 1; i < num_ranks; ++i)
    memory_.peers().raise(memory_.word(rank, (rank + i) % num_ranks, slot), 1);

  Arriving rows{
      .own = own, .whole = at::empty({batch, num_ranks * positions, own.size(2)}, own.options()), .events = {}};
  memory_.set_last(copies_.run([&] {
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
      memory_.peers().raise(memory_.word(owner, rank, slot), 0);
    }
  }));
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
  memory_.last().wait();
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
  memory_.last().wait();
  return rows.whole;
}

at::Tensor PeerRowExchange::scatter(const Summand& summand, const Block& write,
                                    const std::function<void()>& meanwhile) const {
  memory_.begin();
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
      const at::Tensor out = memory_.peers()
                                 .own()
                                 .narrow(0, slot * slot_bytes_ + offset_of(i, sequence), block_bytes)
                                 .view(parts.scalar_type())
                                 .view({positions, summand.whole[2]});
      write(sequence * all + reader * positions, out);
      memory_.peers().raise(memory_.word(rank, reader, slot), static_cast<std::uint32_t>(sequence + 1));
      // Queued after the flag of this block, which the other rank may wait for: whichever streams share a queue of the
      // device, no rank's flag is behind a wait for a later one.
      memory_.set_last(copies_.run([&] {
        read(parts[owner][sequence], owner, slot, sequence, offset_of(i, sequence));
        if (sequence + 1 == batch) memory_.peers().raise(memory_.word(owner, rank, slot), 0);
      }));
    }
  }
  for (std::int64_t sequence = 0; sequence < batch; ++sequence)
    write(sequence * all + rank * positions, parts[rank][sequence]);
  meanwhile();
  memory_.last().wait();
  return num_ranks == 2 ? parts[0] + parts[1] : parts.sum(0);
}

}  // namespace d9d
