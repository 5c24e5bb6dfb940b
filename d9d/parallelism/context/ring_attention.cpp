#include "d9d/parallelism/context/ring_attention.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/range_sum/range_sum.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

using kernels::SdpaInputs;
using kernels::SdpaOptions;
using kernels::SdpaOutput;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kQueriesOfLogsumexp = 2;    // dim of [B, Hq, S]
constexpr int kSavedOutput = 4, kSavedOthers = 6;  // of saved variables

// What a call of kernels computes: a block, the packed sequences in it, and the options of its pairs.
struct Block {
  RingBlock places;
  SdpaOptions options;
  std::optional<PackedSequences> packed = std::nullopt;
  std::optional<PackedKeys> packed_keys = std::nullopt;
};

struct Ring final : torch::CustomClassHolder {
  Ring(SdpaOptions options_, kernels::SdpaPreferences preferences_, std::shared_ptr<const PackedRows> rows_,
       PositionCut positions_, std::shared_ptr<const PeerBlockExchange> exchange_)
      : options(options_),
        preferences(std::move(preferences_)),
        rows(std::move(rows_)),
        positions(std::move(positions_)),
        exchange(std::move(exchange_)),
        blocks_(static_cast<std::size_t>(positions.num_ranks())) {}

  // Made once: backward has those of forward, unless a recomputation finds the result kept.
  [[nodiscard]] const std::vector<Block>& blocks(const at::Tensor& query, std::int64_t rank_of_keys) {
    std::optional<std::vector<Block>>& found = blocks_[static_cast<std::size_t>(rank_of_keys)];
    if (!found) found = made_blocks(query.size(kPositions) * positions.num_ranks(), rank_of_keys);
    return *found;
  }
  // From the first to the last of a rank's own keys that another's queries see; all of its own.
  [[nodiscard]] FlatRange keys_seen(std::int64_t rank_of_queries, std::int64_t rank_of_keys, std::int64_t here) const {
    if (rank_of_queries == rank_of_keys) return {0, here};
    FlatRange seen;
    for (const auto& [queries, keys, is_causal, distance] :
         ring_blocks(positions, here * positions.num_ranks(), rank_of_queries, rank_of_keys, options)) {
      seen = seen.numel() == 0 ? keys : FlatRange{std::min(seen.begin, keys.begin), std::max(seen.end, keys.end)};
    }
    return seen;
  }
  // With one other rank its keys and values are few beside the rank's activations, and backward need not wait for them.
  // A recomputation that finds the result kept does not meet them.
  [[nodiscard]] bool keeps_others() const { return positions.num_ranks() == 2 && !keeps_result; }

  SdpaOptions options;
  kernels::SdpaPreferences preferences;
  std::shared_ptr<const PackedRows> rows;  // of packed sequences
  PositionCut positions;
  std::shared_ptr<const PeerBlockExchange> exchange;
  const bool keeps_result = keeps_results();

 private:
  [[nodiscard]] std::vector<Block> made_blocks(std::int64_t length, std::int64_t rank_of_keys) const;

  std::vector<std::optional<std::vector<Block>>> blocks_;  // by the rank of keys
};

// The positions of the sequence that are at `places` of a rank with the positions `ranges`.
std::vector<FlatRange> positions_at(const std::vector<FlatRange>& ranges, const FlatRange& places) {
  std::vector<FlatRange> result;
  std::int64_t first = 0;
  for (const FlatRange& range : ranges) {
    const std::int64_t begin = std::max(first, places.begin), end = std::min(first + range.numel(), places.end);
    if (begin < end) result.push_back({range.begin + begin - first, range.begin + end - first});
    first += range.numel();
  }
  return result;
}

// Each packed sequence has its queries and its keys of the block. If it is causal, a sequence with both has all of the
// rank's positions in it that are before its last query: so in the rank's own block they are causal as on one rank, and
// in others the queries see all keys.
std::vector<Block> Ring::made_blocks(std::int64_t length, std::int64_t rank_of_keys) const {
  const std::int64_t rank = positions.ranks().index();
  std::vector<Block> result;
  for (const RingBlock& places : ring_blocks(positions, length, rank, rank_of_keys, options)) {
    Block block{.places = places, .options = options};
    block.options.causal = places.is_causal;
    if (options.window_left) block.options.first_query = places.distance;
    if (rows) {
      const auto in_block = [&](std::int64_t each, const FlatRange& range) {
        return rows->in(positions_at(positions.ranges(length, each), range));
      };
      block.packed = in_block(rank, places.queries);
      if (rank_of_keys != rank) {
        const PackedSequences keys = in_block(rank_of_keys, places.keys);
        block.packed_keys = {.cu_seqlens = keys.cu_seqlens, .lengths = {}, .max_length = keys.max_length};
      }
    }
    result.push_back(std::move(block));
  }
  return result;
}

at::Tensor part(const at::Tensor& x, const FlatRange& range, std::int64_t dim = kPositions) {
  return range.numel() == x.size(dim) ? x : x.narrow(dim, range.begin, range.numel());
}

// The sum of gradients of ranges of positions.
class RangeSum {
 public:
  explicit RangeSum(const FlatRange& all) : all_(all) {}

  void add(at::Tensor gradient, FlatRange range) {
    if (!sum_.defined() || (range == all_ && range_ != all_)) {
      std::swap(sum_, gradient);
      std::swap(range_, range);
      if (!gradient.defined()) return;
    } else if (range_ != all_ && range != range_) {
      sum_ = padded();
      range_ = all_;
    }
    const at::Tensor here = part(sum_, {range.begin - range_.begin, range.end - range_.begin});
    kernels::sum_ranges(here, {{.values = here}, {.values = std::move(gradient)}});
  }
  // The sum at all positions. like: a sum of nothing has its sizes but for theirs.
  [[nodiscard]] at::Tensor whole(const at::Tensor& like) const {
    if (sum_.defined()) return range_ == all_ ? sum_ : padded();
    std::vector<std::int64_t> sizes = like.sizes().vec();
    sizes[kPositions] = all_.numel();
    return at::zeros(sizes, like.options());
  }

 private:
  [[nodiscard]] at::Tensor padded() const {
    return at::constant_pad_nd(sum_, {0, 0, 0, 0, range_.begin - all_.begin, all_.end - range_.end});
  }

  FlatRange all_;
  FlatRange range_;
  at::Tensor sum_;  // of range_
};

// The tensors of a block, to which its inputs refer.
struct BlockTensors {
  BlockTensors(const at::Tensor& query_, const PeerBlockExchange::Tensors& theirs, const Block& block)
      : query(part(query_, block.places.queries)),
        key(part(theirs[0], block.places.keys)),
        value(part(theirs[1], block.places.keys)) {}
  [[nodiscard]] SdpaInputs inputs(const Block& block) const {
    return {.query = query, .key = key, .value = value, .packed = block.packed, .packed_keys = block.packed_keys};
  }

  at::Tensor query, key, value;
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const std::optional<at::Tensor>& sinks,
                            const c10::intrusive_ptr<Ring>& ring) {
    variable_list others;
    const auto attend = [&] {
      std::vector<kernels::SdpaPart> parts;
      ring->exchange->visit({key, value}, [&](std::int64_t rank, const PeerBlockExchange::Tensors& theirs) {
        for (const Block& block : ring->blocks(query, rank)) {
          const BlockTensors tensors(query, theirs, block);
          parts.push_back({.result = kernels::attend_to_block(tensors.inputs(block), block.options, ring->preferences),
                           .first_query = block.places.queries.begin});
        }
        if (ring->keeps_others() && rank != ring->positions.ranks().index()) others = theirs;
      });
      const SdpaOutput merged = kernels::merge_blocks(parts, query, sinks);
      return variable_list{merged.out, merged.logsumexp};
    };
    const variable_list merged = kept_result(attend);
    variable_list saved = {query, key, value, sinks.value_or(at::Tensor()), merged[0], merged[1]};
    saved.insert(saved.end(), others.begin(), others.end());
    context->save_for_backward(saved);
    context->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return merged[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    kernels::detail::check_first_order("ring_attention");
    const auto ring = c10::static_intrusive_pointer_cast<Ring>(context->saved_data["ring"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2], &sinks = saved[3];
    const SdpaOutput merged{.out = saved[kSavedOutput], .logsumexp = saved[kSavedOutput + 1]};
    const at::Tensor grad_out = grads[0].contiguous();
    // A sum of two rounds once in any dtype.
    const auto summand_of = [](const at::Tensor& x, bool in_float) {
      return in_float ? x.to(at::promote_types(x.scalar_type(), at::kFloat)) : x;
    };
    const bool has_many_blocks = ring->positions.num_ranks() > 2 || ring->options.window_left;
    const std::int64_t here = query.size(kPositions);
    const auto range_of = [&](std::int64_t rank_of_queries, std::int64_t rank_of_keys) {
      return ring->keys_seen(rank_of_queries, rank_of_keys, here);
    };
    RangeSum grad_query({0, here});
    const auto gradients_of = [&](std::int64_t rank, const PeerBlockExchange::Tensors& theirs) {
      const FlatRange seen = range_of(ring->positions.ranks().index(), rank);
      RangeSum grad_key(seen), grad_value(seen);
      const std::vector<Block>& blocks = ring->blocks(query, rank);
      for (const Block& block : blocks) {
        const BlockTensors tensors(query, theirs, block);
        const auto& [queries, keys, is_causal, distance] = block.places;
        const SdpaOutput of_queries{.out = part(merged.out, queries),
                                    .logsumexp = part(merged.logsumexp, queries, kQueriesOfLogsumexp)};
        const kernels::SdpaGradients found = kernels::block_gradients(part(grad_out, queries), tensors.inputs(block),
                                                                      of_queries, block.options, ring->preferences);
        grad_query.add(summand_of(found.query, has_many_blocks), queries);
        grad_key.add(summand_of(found.key, blocks.size() > 2), keys);
        grad_value.add(summand_of(found.value, blocks.size() > 2), keys);
      }
      return PeerBlockExchange::Tensors{grad_key.whole(key).to(key.scalar_type()),
                                        grad_value.whole(value).to(value.scalar_type())};
    };
    const auto gradients_of_kept = [&](std::int64_t rank) {
      const bool is_own = rank == ring->positions.ranks().index();
      return gradients_of(rank, is_own ? PeerBlockExchange::Tensors{key, value}
                                       : PeerBlockExchange::Tensors{saved[kSavedOthers], saved[kSavedOthers + 1]});
    };
    const PeerBlockExchange::Tensors sums = ring->keeps_others()
                                                ? ring->exchange->sum(range_of, gradients_of_kept)
                                                : ring->exchange->visit_and_sum({key, value}, range_of, gradients_of);
    variable_list result = {grad_query.whole(query).to(query.scalar_type()), sums[0], sums[1], at::Tensor(),
                            at::Tensor()};
    if (sinks.defined() && context->needs_input_grad(3)) result[3] = kernels::sink_gradient(grad_out, merged, sinks);
    return result;
  }
};

// A window sees across the positions between two ranges of a rank, so each pair of ranges is a block of its own. It is
// two where some of more queries than keys do not see all keys, since FlashAttention-2 takes no window then: those that
// see all, and the others.
std::vector<RingBlock> windowed_blocks(const std::vector<FlatRange>& queries, const std::vector<FlatRange>& keys,
                                       std::int64_t window) {
  std::vector<RingBlock> blocks;
  std::int64_t first_query = 0;
  for (const FlatRange& of_queries : queries) {
    std::int64_t first_key = 0;
    for (const FlatRange& of_keys : keys) {
      const bool is_causal = of_queries == of_keys;
      // The positions whose window reaches the last key, and those that the window of the first query reaches.
      const FlatRange seeing{of_queries.begin,
                             is_causal ? of_queries.end : std::min(of_queries.end, of_keys.end + window)};
      const FlatRange seen{is_causal ? of_keys.begin : std::max(of_keys.begin, of_queries.begin - window), of_keys.end};
      const auto add = [&](std::int64_t begin, std::int64_t end) {
        blocks.push_back({.queries = {first_query + begin - of_queries.begin, first_query + end - of_queries.begin},
                          .keys = {first_key + seen.begin - of_keys.begin, first_key + of_keys.numel()},
                          .is_causal = is_causal,
                          .distance = begin - seen.begin});
      };
      if ((is_causal || of_keys.begin < of_queries.begin) && seeing.numel() > 0) {
        const std::int64_t last_that_sees_all = seen.begin + window;
        const bool is_cut = !is_causal && seeing.numel() > seen.numel() && last_that_sees_all < seeing.end - 1;
        if (is_cut) add(seeing.begin, last_that_sees_all);
        add(is_cut ? last_that_sees_all : seeing.begin, seeing.end);
      }
      first_key += of_keys.numel();
    }
    first_query += of_queries.numel();
  }
  return blocks;
}

}  // namespace

std::string ring_refusal(const SdpaInputs& inputs, const SdpaOptions& options, const PositionCut& positions) {
  if (inputs.mask) return "takes no attention mask";
  const bool has_window = options.window_left || options.window_right;
  if (has_window && inputs.packed) return "takes no windows of packed sequences";
  if (has_window && (!options.causal || options.window_right)) return "takes windows of causal attention only";
  const std::int64_t length = inputs.query.size(kPositions) * positions.num_ranks();
  for (std::int64_t rank = 0; rank < positions.num_ranks(); ++rank) {
    if (std::ranges::is_sorted(positions.ranges(length, rank), {}, &FlatRange::begin)) continue;
    return "takes only cuts whose ranks have their positions in ascending order";
  }
  return "";
}

at::Tensor ring_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                          const kernels::SdpaPreferences& preferences, const PositionCut& positions,
                          const std::shared_ptr<const PeerBlockExchange>& exchange,
                          std::shared_ptr<const PackedRows> rows) {
  D9D_ASSERT(ring_refusal(inputs, options, positions).empty() && options.first_query == 0,
             "ring_attention of other inputs");
  if (inputs.packed && rows == nullptr) {
    rows = std::make_shared<PackedRows>(*inputs.packed, inputs.query.size(kPositions) * positions.num_ranks());
  }
  return RingAttention::apply(inputs.query, inputs.key, inputs.value, inputs.sinks,
                              c10::make_intrusive<Ring>(options, preferences, std::move(rows), positions, exchange));
}

std::vector<RingBlock> ring_blocks(const PositionCut& positions, std::int64_t length, std::int64_t rank_of_queries,
                                   std::int64_t rank_of_keys, const SdpaOptions& options) {
  const std::int64_t here = length / positions.num_ranks();
  if (!options.causal) return {{.queries = {0, here}, .keys = {0, here}}};
  const std::vector<FlatRange> queries = positions.ranges(length, rank_of_queries);
  const std::vector<FlatRange> keys = positions.ranges(length, rank_of_keys);
  if (options.window_left) return windowed_blocks(queries, keys, std::min(*options.window_left, length));
  if (rank_of_queries == rank_of_keys) return {{.queries = {0, here}, .keys = {0, here}, .is_causal = true}};
  // A range of queries sees the ranges of keys before it. Ranges of queries that see as many are one block.
  std::vector<RingBlock> blocks;
  std::int64_t first = 0;
  for (const FlatRange& range : queries) {
    FlatRange seen{0, 0};
    for (const FlatRange& each : keys) {
      if (each.begin < range.begin) seen.end += each.numel();
    }
    if (!blocks.empty() && blocks.back().keys == seen) {
      blocks.back().queries.end += range.numel();
    } else if (seen.numel() > 0) {
      blocks.push_back({.queries = {first, first + range.numel()}, .keys = seen});
    }
    first += range.numel();
  }
  return blocks;
}

}  // namespace d9d
