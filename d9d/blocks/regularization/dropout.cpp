#include "d9d/blocks/regularization/dropout.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"

namespace d9d {

Dropout::Dropout(double drop_probability) : probability(drop_probability) {
  D9D_CHECK(probability >= 0.0 && probability < 1.0, ConfigError,
            "[blocks::dropout] expected a probability in [0, 1), got ", probability, ".");
}

std::optional<TensorPlan> Dropout::tensor_plan(std::int64_t /*num_ranks*/) const {
  return TensorPlan{.input = TensorPlan::Edge::kShard, .output = TensorPlan::Edge::kShard};
}

void Dropout::set_tensor_parallel_context(TensorParallelContextPtr context) {
  add_cut({.ranks = PositionCut(context->ranks()), .dim = kPositions});
}

void Dropout::add_cut(const TensorCut& cut) {
  if (std::ranges::find(cuts_, cut.ranks, &TensorCut::ranks) == cuts_.end()) cuts_.push_back(cut);
}

std::vector<Dropout::Part> Dropout::parts_of(const at::Tensor& mask) const {
  check_cuts(*random_clock());
  std::map<std::int64_t, PositionCut> cut_of_dim;
  for (const auto& [ranks, dim] : cuts_) {
    if (!dim) continue;
    D9D_CHECK(*dim >= 0 && *dim < mask.dim(), ConfigError, "[blocks::dropout] expected ", canonical_name(),
              " to get a tensor with dim ", *dim, ", which is cut over ", ranks.num_ranks(), " ranks, got ",
              mask.sizes(), ". Call it with [B, S, ...], or add the cut that its tensors have.");
    cut_of_dim[*dim] = cut_of_dim[*dim].then(ranks);
  }
  std::vector<Part> parts = {{.mask = mask, .window = whole_window(mask)}};
  for (const auto& [dim, cut] : cut_of_dim) {
    const std::int64_t length = mask.size(dim) * cut.num_ranks();
    std::vector<Part> smaller;
    for (const Part& part : parts) {
      std::int64_t first = 0;
      for (const FlatRange& range : cut.ranges(length)) {
        smaller.push_back({.mask = part.mask.narrow(dim, first, range.numel()), .window = part.window});
        smaller.back().window.global_shape[static_cast<std::size_t>(dim)] = length;
        smaller.back().window.start[static_cast<std::size_t>(dim)] = range.begin;
        first += range.numel();
      }
    }
    parts = std::move(smaller);
  }
  return parts;
}

// Without cuts the ranks of a microbatch would drop the same elements of their different parts.
void Dropout::check_cuts(const RandomClock& clock) const {
  std::int64_t num_ranks = 1;
  for (const TensorCut& cut : cuts_) num_ranks *= cut.ranks.num_ranks();
  D9D_CHECK(num_ranks >= clock.num_ranks, ConfigError,
            "[blocks::dropout] expected to know which part of its tensor each of the ", clock.num_ranks,
            " ranks of a microbatch has, got cuts over ", num_ranks, " in ", canonical_name(),
            ". Lay the module out by parallelize_context_parallel() or parallelize_tensor_parallel(), or call "
            "Dropout::add_cut().");
}

// The random numbers of the next call in this microbatch.
RandomStream Dropout::next_stream() const {
  RandomClock& clock = *random_clock();
  RandomMicrobatch& microbatch = clock.microbatch;
  const std::string purpose =
      cat("dropout ", microbatch.num_draws[canonical_name()]++, " of microbatch ", microbatch.number);
  return {.key = philox_key(clock.base_seed, purpose, canonical_name()), .step = microbatch.step};
}

at::Tensor Dropout::forward(const at::Tensor& x) const {
  if (!is_training() || probability == 0.0) return x;
  const at::Tensor mask = at::empty(x.sizes(), x.options().dtype(at::kBool));
  const std::vector<Part> parts = parts_of(mask);
  const RandomStream stream = replayed([this] { return next_stream(); });
  for (const auto& [part, window] : parts) fill_bernoulli(part, window, stream, 1.0 - probability);
  return x * mask / (1.0 - probability);
}

}  // namespace d9d
