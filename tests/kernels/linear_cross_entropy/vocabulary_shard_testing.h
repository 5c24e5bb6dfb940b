// linear_cross_entropy over ranks that are threads and have parts of the vocabulary, as an operator of whole tensors.
//
// Example
//   EXPECT_LT(error_against_dense(inputs, options, sharded<3>), 1e-13);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/rounding.h"

#include "tests/kernels/linear_cross_entropy/linear_cross_entropy_testing.h"
#include "tests/support/ranks.h"

namespace d9d::testing {

// Part `rank` of tensors that have a row for each id of the vocabulary, each tensor cut as torch.chunk does. The first
// has the greatest part.
inline std::vector<at::Tensor> part_of_rows(at::TensorList splits, std::int64_t rank, std::int64_t num_ranks) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& split : splits) {
    const std::int64_t most = divide_up(split.size(0), num_ranks), begin = std::min(split.size(0), rank * most);
    parts.push_back(split.narrow(0, begin, std::min(most, split.size(0) - begin)));
  }
  return parts;
}

// The arguments of one rank. A target of another rank is -1, and so is one of none.
struct ShardArguments {
  std::vector<at::Tensor> weights;
  at::Tensor targets;
  kernels::LinearCrossEntropyOptions options;
};
inline ShardArguments shard_arguments(at::TensorList weight, const at::Tensor& targets,
                                      const kernels::LinearCrossEntropyOptions& options, std::int64_t rank,
                                      std::int64_t num_ranks) {
  std::vector<at::Tensor> ids;
  std::vector<std::int64_t> sizes;
  std::int64_t size = 0, most = 0;
  for (const at::Tensor& split : weight) {
    ids.push_back(at::arange(split.size(0), targets.options()) + size);
    sizes.push_back(split.size(0));
    size += split.size(0);
    most += divide_up(split.size(0), num_ranks);
  }
  const auto cut = [&](at::TensorList splits) { return part_of_rows(splits, rank, num_ranks); };
  ShardArguments result{
      .weights = cut(weight), .targets = targets.masked_fill(targets.ne(kIgnore), -1), .options = options};
  const at::Tensor own_ids = at::cat(cut(ids));
  for (std::int64_t row = 0; row < own_ids.size(0); ++row)
    result.targets = at::where(targets.eq(own_ids[row]), row, result.targets);
  if (options.bias) result.options.bias = at::cat(cut(options.bias->split_with_sizes(sizes)));
  if (options.low_rank) result.options.low_rank->weights = cut(options.low_rank->weights);
  result.options.shard = kernels::VocabularyShard{.gather = {}, .most_rows = most};
  return result;
}

// Loss and lse, which must have the same bits on all ranks. Their gradients flow to the whole tensors, as if each rank
// had the loss: those of hidden are summed in fp64.
template <std::int64_t kNumRanks>
kernels::LinearCrossEntropyOutput sharded(const at::Tensor& hidden, at::TensorList weight, const at::Tensor& targets,
                                          const kernels::LinearCrossEntropyOptions& options) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  const at::Tensor wide_hidden = wide(hidden);
  const at::Tensor wide_term = options.low_rank ? wide(options.low_rank->hidden) : at::Tensor();
  std::vector<at::Tensor> posted(kNumRanks);
  std::vector<kernels::LinearCrossEntropyOutput> outputs(kNumRanks);
  test::run_ranks(test::RankBackend::kThreads, kNumRanks, [&](World& world) {
    const auto all = world.communicator(test::group_of(world, "all"));
    const auto rank = static_cast<std::size_t>(world.rank());
    ShardArguments own = shard_arguments(weight, targets, options, world.rank(), kNumRanks);
    if (own.options.low_rank) own.options.low_rank->hidden = wide_term.to(hidden.scalar_type());
    own.options.shard->gather = [&](const at::Tensor& x) {
      posted[rank] = x;
      all->barrier();
      at::Tensor of_ranks = at::stack(posted);  // on a GPU, work of all ranks is in one stream
      all->barrier();
      return of_ranks;
    };
    outputs[rank] =
        kernels::linear_cross_entropy(wide_hidden.to(hidden.scalar_type()), own.weights, own.targets, own.options);
  });
  kernels::LinearCrossEntropyOutput result = outputs.front();
  for (std::size_t rank = 1; rank < outputs.size(); ++rank) {
    const auto with_gradient_of = [](const at::Tensor& of_first, const at::Tensor& of_rank) {
      EXPECT_TRUE(at::allclose(of_rank, of_first, 0, 0, /*equal_nan=*/true));
      return of_first + (of_rank - of_rank.detach());
    };
    result = {.loss = with_gradient_of(result.loss, outputs[rank].loss),
              .lse = with_gradient_of(result.lse, outputs[rank].lse)};
  }
  return result;
}

}  // namespace d9d::testing
