#include "d9d/blocks/regularization/dropout.h"

#include <algorithm>
#include <ranges>

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
  add_cut({.ranks = context->ranks(), .dim = kPositions});
}

void Dropout::add_cut(const TensorCut& cut) {
  if (std::ranges::find(cuts_, cut) == cuts_.end()) cuts_.push_back(cut);
}

ElementWindow Dropout::window_of(const at::Tensor& x) const {
  ElementWindow window = whole_window(x);
  for (const TensorCut& cut : std::views::reverse(cuts_)) {
    if (!cut.dim) continue;
    D9D_CHECK(*cut.dim >= 0 && *cut.dim < x.dim(), ConfigError, "[blocks::dropout] expected ", canonical_name(),
              " to get a tensor with dim ", *cut.dim, ", which is cut over ", cut.ranks.num_ranks(), " ranks, got ",
              x.sizes(), ". Call it with [B, S, ...], or add the cut that its tensors have.");
    const auto dim = static_cast<std::size_t>(*cut.dim);
    window.start[dim] += cut.ranks.index() * window.global_shape[dim];
    window.global_shape[dim] *= cut.ranks.num_ranks();
  }
  return window;
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
  check_cuts(clock);
  RandomMicrobatch& microbatch = clock.microbatch;
  const std::string purpose =
      cat("dropout ", microbatch.num_draws[canonical_name()]++, " of microbatch ", microbatch.number);
  return {.key = philox_key(clock.base_seed, purpose, canonical_name()), .step = microbatch.step};
}

at::Tensor Dropout::forward(const at::Tensor& x) const {
  if (!is_training() || probability == 0.0) return x;
  const RandomStream stream = replayed([this] { return next_stream(); });
  const at::Tensor mask = at::empty(x.sizes(), x.options().dtype(at::kBool));
  fill_bernoulli(mask, window_of(mask), stream, 1.0 - probability);
  return x * mask / (1.0 - probability);
}

}  // namespace d9d
