#include "d9d/parallelism/context/peer_block_exchange.h"

#include <algorithm>
#include <array>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/kernels/range_sum/range_sum.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

constexpr std::int64_t kSlots = 2, kSums = 2;    // used in turn
constexpr std::int64_t kKinds = kSlots + kSums;  // of words
constexpr std::int64_t kAlignment = 256;

std::int64_t bytes_of(const at::Tensor& x) { return x.numel() * static_cast<std::int64_t>(x.element_size()); }
std::int64_t room_of(const at::Tensor& x) { return round_up(bytes_of(x), kAlignment); }

std::int64_t room_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += room_of(x);
  return bytes;
}

// The tensor at a byte of a block.
at::Tensor view_of(const at::Tensor& block, std::int64_t first, at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::int64_t bytes = c10::multiply_integers(sizes) * static_cast<std::int64_t>(at::elementSize(dtype));
  return block.narrow(0, first, bytes).view(dtype).view(sizes);
}

// Views of tensors of these shapes and dtypes that lie one after another in a block.
std::vector<at::Tensor> views_of(const at::Tensor& block, std::int64_t first, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& x : like) {
    views.push_back(view_of(block, first, x.sizes(), x.scalar_type()));
    first += room_of(x);
  }
  return views;
}

void copy_to(const at::Tensor& block, std::int64_t first, const std::vector<at::Tensor>& tensors) {
  const std::vector<at::Tensor> views = views_of(block, first, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) kernels::sum_ranges(views[i], {{.values = tensors[i]}});
}

}  // namespace

PeerBlockExchange::PeerBlockExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch)
    : ranks_(std::move(ranks)), copies_(ranks_->device()), sends_(ranks_->device()), memory_(ranks_, watch, kKinds) {}

bool PeerBlockExchange::fits(const Tensors& own) {
  const std::int64_t bytes = std::max(part_bytes_, room_of(own));
  if (!memory_.fits((kSlots + kSums * (ranks_->size() - 1)) * bytes)) return false;
  part_bytes_ = bytes;
  return true;
}

std::int64_t PeerBlockExchange::other(std::int64_t i) const {
  return (ranks_->rank() + ranks_->size() - i) % ranks_->size();
}

std::int64_t PeerBlockExchange::place_of(std::int64_t writer, std::int64_t owner, std::int64_t sum) const {
  const std::int64_t num_ranks = ranks_->size(), index = (writer + num_ranks - owner) % num_ranks - 1;
  return (kSlots + sum * (num_ranks - 1) + index) * part_bytes_;
}

void PeerBlockExchange::visit(const Tensors& own, const See& see) const {
  memory_.begin();
  const at::NoGradGuard no_grad;
  const PeerMemory& peers = memory_.peers();
  const std::int64_t num_others = ranks_->size() - 1, rank = ranks_->rank(), slot = num_visits_++ % kSlots;
  // On the current stream: beside the computation with the own tensors, which takes all multiprocessors, the copies
  // would end after it.
  copy_to(peers.own(), slot * part_bytes_, own);

  struct OtherBlock {
    at::Tensor bytes;
    Tensors tensors;
    StreamEvent arrived;
  };
  std::array<OtherBlock, 2> others;
  const auto block_of = [&](std::int64_t i) -> OtherBlock& { return others[static_cast<std::size_t>(i % 2)]; };
  for (std::int64_t i = 1; i <= std::min<std::int64_t>(2, num_others); ++i) {
    block_of(i).bytes = at::empty({room_of(own)}, own.front().options().dtype(at::kByte));
    block_of(i).tensors = views_of(block_of(i).bytes, 0, own);
  }
  // Copies the tensors of the i-th other rank after all that the current stream has now: the i - 2-th have been read.
  const auto begin_copies = [&](std::int64_t i) {
    if (i > num_others) return;
    block_of(i).arrived = copies_.run([&] {
      if (i == 1) {
        for (std::int64_t j = 1; j <= num_others; ++j) peers.raise(memory_.word(rank, other(-j), slot), 1);
      }
      peers.wait_for(memory_.word(other(i), rank, slot), 1);
      peers.read(block_of(i).bytes, other(i), slot * part_bytes_);
      peers.raise(memory_.word(other(i), rank, slot), 0);
    });
    memory_.set_last(block_of(i).arrived);
  };
  begin_copies(1);
  begin_copies(2);
  see(rank, own);
  for (std::int64_t i = 1; i <= num_others; ++i) {
    block_of(i).arrived.wait();
    see(other(i), block_of(i).tensors);
    begin_copies(i + 2);
  }
}

// Beside what the current stream computes next.
void PeerBlockExchange::send(const Tensors& contributions, const FlatRange& positions, std::int64_t owner,
                             std::int64_t sum) const {
  memory_.set_last(sends_.run([&] {
    std::int64_t place = place_of(ranks_->rank(), owner, sum);
    for (const at::Tensor& x : contributions) {
      D9D_ASSERT(x.size(kPositions) == positions.numel(), "contributions to ", x.size(kPositions), " positions of ",
                 positions.numel());
      if (x.numel() == 0) continue;
      const at::Tensor source = x.contiguous();
      memory_.peers().write(source, owner, place);
      keep_for_current_stream(x);
      place += room_of(x);
    }
    memory_.peers().raise(memory_.word(ranks_->rank(), owner, kSlots + sum), 1);
  }));
}

void PeerBlockExchange::add_received(const Tensors& contributions, const RangeOf& range_of, std::int64_t sum) const {
  const PeerMemory& peers = memory_.peers();
  const std::int64_t num_others = ranks_->size() - 1, rank = ranks_->rank();
  memory_.last().wait();
  for (std::int64_t i = 1; i <= num_others; ++i) peers.wait_for(memory_.word(other(i), rank, kSlots + sum), 1);
  std::vector<FlatRange> positions;  // of contributions of the i-th other rank
  std::vector<std::int64_t> places;
  for (std::int64_t i = 1; i <= num_others; ++i) {
    positions.push_back(range_of(other(i), rank));
    places.push_back(place_of(other(i), rank, sum));
  }
  for (const at::Tensor& own : contributions) {
    std::vector<kernels::PositionRange> summands = {{.values = own}};
    std::vector<std::int64_t> sizes = own.sizes().vec();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (positions[i].numel() == 0) continue;
      sizes[kPositions] = positions[i].numel();
      summands.push_back(
          {.values = view_of(peers.own(), places[i], sizes, own.scalar_type()), .first_position = positions[i].begin});
      places[i] += room_of(summands.back().values);
    }
    kernels::sum_ranges(own, summands);
  }
  for (std::int64_t i = 1; i <= num_others; ++i) peers.raise(memory_.word(other(i), rank, kSlots + sum), 0);
}

PeerBlockExchange::Tensors PeerBlockExchange::sum(const RangeOf& range_of, const Make& make) const {
  memory_.begin();
  const std::int64_t number = num_sums_++ % kSums;
  for (std::int64_t i = 1; i < ranks_->size(); ++i) {
    send(make(other(i)), range_of(ranks_->rank(), other(i)), other(i), number);
  }
  Tensors own = make(ranks_->rank());
  add_received(own, range_of, number);
  return own;
}

PeerBlockExchange::Tensors PeerBlockExchange::visit_and_sum(const Tensors& own, const RangeOf& range_of,
                                                            const SeeAndMake& make) const {
  const std::int64_t number = num_sums_++ % kSums;
  Tensors contributions;
  visit(own, [&](std::int64_t rank, const Tensors& theirs) {
    Tensors made = make(rank, theirs);
    if (rank == ranks_->rank()) {
      contributions = std::move(made);
    } else {
      send(made, range_of(ranks_->rank(), rank), rank, number);
    }
  });
  add_received(contributions, range_of, number);
  return contributions;
}

}  // namespace d9d
