#include "d9d/core/dtensor/position_cut.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::vector<std::vector<std::int64_t>> one_chunk_each(std::int64_t num_ranks) {
  std::vector<std::vector<std::int64_t>> chunks;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) chunks.push_back({rank});
  return chunks;
}

void append(std::vector<FlatRange>& ranges, const FlatRange& range) {
  if (range.numel() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

// Elements [chosen.begin, chosen.end) of the concatenation of `ranges`.
void append_part(std::vector<FlatRange>& result, const std::vector<FlatRange>& ranges, const FlatRange& chosen) {
  std::int64_t first = 0;
  for (const FlatRange& range : ranges) {
    const std::int64_t begin = std::max(chosen.begin - first, std::int64_t{0});
    const std::int64_t end = std::min(chosen.end - first, range.numel());
    if (begin < end) append(result, {.begin = range.begin + begin, .end = range.begin + end});
    first += range.numel();
  }
}

at::Tensor joined(const std::vector<at::Tensor>& parts, std::int64_t dim) {
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

}  // namespace

std::int64_t PositionCut::Step::num_chunks() const {
  return std::ssize(chunks_of_rank) * std::ssize(chunks_of_rank.front());
}

PositionCut::PositionCut(DeviceMesh ranks) {
  if (ranks.num_ranks() == 1) return;
  const std::int64_t num_ranks = ranks.num_ranks();
  steps_.push_back({.ranks = std::move(ranks), .chunks_of_rank = one_chunk_each(num_ranks)});
}

PositionCut::PositionCut(DeviceMesh ranks, std::vector<std::vector<std::int64_t>> chunks_of_rank) {
  std::vector<std::int64_t> all;
  for (const auto& chunks : chunks_of_rank) all.insert(all.end(), chunks.begin(), chunks.end());
  std::ranges::sort(all);
  bool is_partition = std::ssize(chunks_of_rank) == ranks.num_ranks();
  for (std::size_t i = 0; i < all.size(); ++i) is_partition = is_partition && all[i] == static_cast<std::int64_t>(i);
  for (const auto& chunks : chunks_of_rank) {
    is_partition = is_partition && !chunks.empty() && chunks.size() == chunks_of_rank.front().size();
  }
  D9D_CHECK(is_partition, ConfigError, "[core::position_cut] expected chunks 0, 1, ... for ", ranks.num_ranks(),
            " ranks, each on one and as many on each, got ", all.size(), " for ", chunks_of_rank.size(), ".");
  steps_.push_back({.ranks = std::move(ranks), .chunks_of_rank = std::move(chunks_of_rank)});
}

PositionCut PositionCut::then(const PositionCut& inner) const {
  PositionCut both = *this;
  both.steps_.insert(both.steps_.end(), inner.steps_.begin(), inner.steps_.end());
  return both;
}

std::int64_t PositionCut::num_ranks() const {
  std::int64_t product = 1;
  for (const Step& step : steps_) product *= step.ranks.num_ranks();
  return product;
}

DeviceMesh PositionCut::ranks() const {
  D9D_ASSERT(steps_.size() <= 1, "ranks of a cut that is not one after another");
  return steps_.empty() ? DeviceMesh() : steps_.front().ranks;
}

std::int64_t PositionCut::divisor() const {
  std::int64_t divisor = 1;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    divisor = std::lcm(divisor * step->ranks.num_ranks(), step->num_chunks());
  }
  return divisor;
}

std::int64_t PositionCut::rank() const {
  std::int64_t rank = 0;
  for (const Step& step : steps_) rank = rank * step.ranks.num_ranks() + step.ranks.index();
  return rank;
}

std::vector<FlatRange> PositionCut::ranges(std::int64_t length) const { return ranges(length, rank()); }

std::vector<FlatRange> PositionCut::ranges(std::int64_t length, std::int64_t rank) const {
  D9D_CHECK(length % divisor() == 0, ConfigError, "[core::position_cut] expected a sequence in a multiple of ",
            divisor(), " positions for the ", num_ranks(), " ranks that share it, got ", length,
            ". Choose such a sequence length, or pad.");
  std::vector<FlatRange> ranges = {{.begin = 0, .end = length}};
  std::int64_t num_inner = num_ranks();  // ranks of the steps that follow
  for (const Step& step : steps_) {
    num_inner /= step.ranks.num_ranks();
    const auto& chunks = step.chunks_of_rank[static_cast<std::size_t>(rank / num_inner % step.ranks.num_ranks())];
    const std::int64_t size = length / step.num_chunks();
    std::vector<FlatRange> parts;
    for (const std::int64_t chunk : chunks) {
      append_part(parts, ranges, {.begin = chunk * size, .end = (chunk + 1) * size});
    }
    ranges = std::move(parts);
    length /= step.ranks.num_ranks();
  }
  return ranges;
}

at::Tensor PositionCut::part_of(const at::Tensor& x, std::int64_t dim) const {
  if (num_ranks() == 1) return x;
  std::vector<at::Tensor> parts;
  for (const FlatRange& range : ranges(x.size(dim))) parts.push_back(x.narrow(dim, range.begin, range.numel()));
  return parts.empty() ? x.narrow(dim, 0, 0) : joined(parts, dim);
}

at::Tensor PositionCut::in_order(const at::Tensor& parts, std::int64_t dim) const {
  std::vector<std::pair<std::int64_t, at::Tensor>> ordered;  // by the first position
  std::int64_t first = 0;
  for (std::int64_t rank = 0; rank < num_ranks(); ++rank) {
    for (const FlatRange& range : ranges(parts.size(dim), rank)) {
      ordered.emplace_back(range.begin, parts.narrow(dim, first, range.numel()));
      first += range.numel();
    }
  }
  const auto begin_of = [](const auto& each) { return each.first; };
  if (std::ranges::is_sorted(ordered, {}, begin_of)) return parts;
  std::ranges::sort(ordered, {}, begin_of);
  std::vector<at::Tensor> tensors;
  for (const auto& [begin, tensor] : ordered) tensors.push_back(tensor);
  return at::cat(tensors, dim);
}

at::Tensor PositionCut::in_rank_order(const at::Tensor& x, std::int64_t dim) const {
  std::vector<FlatRange> order;
  for (std::int64_t rank = 0; rank < num_ranks(); ++rank) {
    for (const FlatRange& range : ranges(x.size(dim), rank)) append(order, range);
  }
  if (order.size() <= 1) return x;
  std::vector<at::Tensor> parts;
  for (const FlatRange& range : order) parts.push_back(x.narrow(dim, range.begin, range.numel()));
  return at::cat(parts, dim);
}

PositionCut::Place PositionCut::place_of(std::int64_t position, std::int64_t length) const {
  for (std::int64_t rank = 0; rank < num_ranks(); ++rank) {
    std::int64_t first = 0;
    for (const FlatRange& range : ranges(length, rank)) {
      if (position >= range.begin && position < range.end) {
        return {.rank = rank, .index = first + position - range.begin};
      }
      first += range.numel();
    }
  }
  throw InternalError(cat("[core::position_cut] no rank has position ", position, " of ", length));
}

}  // namespace d9d
