#include "d9d/parallelism/context/peer_block_exchange.h"

#include <algorithm>
#include <array>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/rounding.h"

namespace d9d {
namespace {

// Kinds of words: of the two slots, and of contributions.
constexpr std::int64_t kSlots = 2, kSums = 2, kKinds = 3;
constexpr std::int64_t kAlignment = 256;

std::int64_t word_index(const Communicator& ranks, std::int64_t writer, std::int64_t reader, std::int64_t kind) {
  return (writer * ranks.size() + reader) * kKinds + kind;
}

std::vector<std::int64_t> words_of_reader(const Communicator& ranks) {
  std::vector<std::int64_t> words;
  for (std::int64_t writer = 0; writer < ranks.size(); ++writer) {
    for (std::int64_t kind = 0; kind < kKinds; ++kind) words.push_back(word_index(ranks, writer, ranks.rank(), kind));
  }
  return words;
}

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

}  // namespace

PeerBlockExchange::PeerBlockExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch)
    : ranks_(std::move(ranks)),
      copies_(ranks_->device()),
      sends_(ranks_->device()),
      memory_(ranks_, watch, ranks_->size() * ranks_->size() * kKinds, words_of_reader(*ranks_)) {}

bool PeerBlockExchange::fits(const Tensors& own) {
  const std::int64_t bytes = std::max(part_bytes_, room_of(own));
  if (!memory_.fits((kSlots + ranks_->size() - 1) * bytes)) return false;
  part_bytes_ = bytes;
  return true;
}

std::int64_t PeerBlockExchange::other(std::int64_t i) const {
  return (ranks_->rank() + ranks_->size() - i) % ranks_->size();
}

std::int64_t PeerBlockExchange::word(std::int64_t writer, std::int64_t reader, std::int64_t kind) const {
  return memory_.word(word_index(*ranks_, writer, reader, kind));
}

std::int64_t PeerBlockExchange::place_of_sums(std::int64_t writer, std::int64_t owner) const {
  return (kSlots + (writer + ranks_->size() - owner) % ranks_->size() - 1) * part_bytes_;
}

void PeerBlockExchange::visit(const Tensors& own, const See& see) const {
  ranks_->throw_if_failed();
  const at::NoGradGuard no_grad;
  const PeerMemory& peers = memory_.peers();
  const std::int64_t num_others = ranks_->size() - 1, rank = ranks_->rank(), slot = num_visits_++ % kSlots;
  std::int64_t place = slot * part_bytes_;
  for (const at::Tensor& x : own) {
    view_of(peers.own(), place, x.sizes(), x.scalar_type()).copy_(x);
    place += room_of(x);
  }
  for (std::int64_t i = 1; i <= num_others; ++i) peers.raise(word(rank, other(-i), slot), 1);

  std::array<Tensors, 2> buffers;
  std::array<StreamEvent, 2> arrived;
  const auto buffer_of = [](std::int64_t i) { return static_cast<std::size_t>(i % 2); };
  for (std::int64_t i = 1; i <= std::min<std::int64_t>(2, num_others); ++i) {
    for (const at::Tensor& x : own) buffers[buffer_of(i)].push_back(at::empty(x.sizes(), x.options()));
  }
  // Copies the tensors of the i-th other rank after all that the current stream has now: the i - 2-th have been read.
  const auto begin_copies = [&](std::int64_t i) {
    if (i > num_others) return;
    arrived[buffer_of(i)] = copies_.run([&] {
      peers.wait_for(word(other(i), rank, slot), 1);
      std::int64_t theirs = slot * part_bytes_;
      for (const at::Tensor& target : buffers[buffer_of(i)]) {
        peers.read(target, other(i), theirs);
        theirs += room_of(target);
      }
      peers.raise(word(other(i), rank, slot), 0);
    });
    memory_.set_last(arrived[buffer_of(i)]);
  };
  begin_copies(1);
  begin_copies(2);
  see(rank, own);
  for (std::int64_t i = 1; i <= num_others; ++i) {
    arrived[buffer_of(i)].wait();
    see(other(i), buffers[buffer_of(i)]);
    begin_copies(i + 2);
  }
}

// Beside what the current stream computes next.
void PeerBlockExchange::send(const Tensors& contributions, std::int64_t owner) const {
  memory_.set_last(sends_.run([&] {
    std::int64_t place = place_of_sums(ranks_->rank(), owner);
    for (const at::Tensor& x : contributions) {
      const at::Tensor source = x.contiguous();
      memory_.peers().write(source, owner, place);
      keep_for_current_stream(source);
      place += room_of(x);
    }
    memory_.peers().raise(word(ranks_->rank(), owner, kSums), 1);
  }));
}

void PeerBlockExchange::add_received(Tensors& sums) const {
  const PeerMemory& peers = memory_.peers();
  const std::int64_t num_others = ranks_->size() - 1, rank = ranks_->rank();
  memory_.last().wait();  // for the last contributions of this rank, whose memory is free then
  for (std::int64_t i = 1; i <= num_others; ++i) peers.wait_for(word(other(i), rank, kSums), 1);
  std::int64_t place = 0;
  for (at::Tensor& sum : sums) {
    const at::ScalarType dtype = sum.scalar_type();
    // One addition rounds once in any dtype.
    if (num_others > 1) sum = sum.to(at::promote_types(dtype, at::kFloat));
    for (std::int64_t i = 1; i <= num_others; ++i) {
      sum = sum + view_of(peers.own(), place_of_sums(other(i), rank) + place, sum.sizes(), dtype);
    }
    sum = sum.to(dtype);
    place += room_of(sum);
  }
  for (std::int64_t i = 1; i <= num_others; ++i) peers.raise(word(other(i), rank, kSums), 0);
}

PeerBlockExchange::Tensors PeerBlockExchange::visit_and_sum(const Tensors& own, const Make& make) const {
  Tensors sums;
  visit(own, [&](std::int64_t rank, const Tensors& theirs) {
    Tensors contributions = make(rank, theirs);
    if (rank == ranks_->rank()) {
      sums = std::move(contributions);
    } else {
      send(contributions, rank);
    }
  });
  add_received(sums);
  return sums;
}

}  // namespace d9d
