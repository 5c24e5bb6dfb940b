// linear_cross_entropy of ranks that have parts of the vocabulary, compared with the whole.
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"

#include "tests/kernels/linear_cross_entropy/gradient_filter_testing.h"
#include "tests/kernels/linear_cross_entropy/vocabulary_shard_testing.h"
#include "tests/support/compare.h"

namespace d9d::kernels::vocabulary_shard_test {
namespace {

using ::d9d::testing::DenseFilter;
using ::d9d::testing::expect_equal;
using ::d9d::testing::filter_gradients;
using ::d9d::testing::FilterCase;
using ::d9d::testing::filtered_options;
using ::d9d::testing::labels;
using ::d9d::testing::low_rank_form;
using ::d9d::testing::peaked_case;
using ::d9d::testing::sharded;
using ::d9d::testing::values;

constexpr double kRounding = 1e-13;

struct Inputs {
  at::Tensor hidden = values({2, 9, 6}, 1);
  // Over three ranks: 4, 4, 3 rows; none; 1, 0, 0; 3, 3, 2.
  std::vector<at::Tensor> weights = {values({11, 6}, 5), values({0, 6}, 6), values({1, 6}, 7), values({8, 6}, 8)};
  at::Tensor targets = labels({2, 9}, 20, 3);
};

double error_against_dense(const Inputs& inputs, const LinearCrossEntropyOptions& options, bool has_low_rank = false) {
  const auto in_parts = [&](const at::Tensor& hidden, at::TensorList weight, const at::Tensor& targets,
                            const LinearCrossEntropyOptions& own) {
    return has_low_rank ? low_rank_form(sharded<3>, hidden, weight, targets, own)
                        : sharded<3>(hidden, weight, targets, own);
  };
  return ::d9d::testing::error_against_dense(inputs, options, in_parts);
}

TEST(VocabularyShard, Equals_the_whole_for_every_option) {
  const at::Tensor bias = values({20}, 4);
  for (const LinearCrossEntropyOptions& options :
       std::vector<LinearCrossEntropyOptions>{{},
                                              {.bias = bias},
                                              {.softcap = 1.5},
                                              {.z_loss_weight = 0.1},
                                              {.reduction = Reduction::kMean},
                                              {.bias = bias, .softcap = 2.0, .z_loss_weight = 0.3},
                                              {.bias = bias, .softcap = 2.0, .chunk_size = 40}}) {
    for (const bool has_low_rank : {false, true}) EXPECT_LT(error_against_dense({}, options, has_low_rank), kRounding);
  }
}

// The exponentials of a rank's own maximum would overflow or vanish on the others.
TEST(VocabularyShard, Equals_the_whole_where_the_logits_of_ranks_are_far_apart) {
  at::Tensor bias = at::zeros({20}, at::kDouble);
  bias.narrow(0, 0, 4).fill_(-2000);                                      // of rank 0, which has targets here, too
  bias.narrow(0, 11, 4).fill_(-std::numeric_limits<double>::infinity());  // of rank 0
  Inputs inputs;
  inputs.targets = at::where(inputs.targets.ge(11), inputs.targets.remainder(4) + 15, inputs.targets);
  EXPECT_LT(error_against_dense(inputs, {.bias = bias}), kRounding);
}

TEST(VocabularyShard, Leaves_out_the_tiles_that_the_whole_leaves_out) {
  constexpr ::d9d::testing::TileSize kTile = {.rows = 1024, .columns = 1};
  for (const LinearCrossEntropyOptions& options : filtered_options(1e-3)) {
    const FilterCase one = peaked_case({300, 0, 1, 499});
    const DenseFilter expected(one, options);
    expect_equal(filter_gradients(one, options, sharded<3>), expected.gradients(expected.filtered(kTile)),
                 test::tolerance("fp64 repeated"));
  }
}

TEST(VocabularyShard, Gives_nan_for_a_target_that_no_rank_has) {
  const Inputs inputs;
  const at::Tensor targets = at::where(inputs.targets.eq(inputs.targets.max()), 20, inputs.targets);
  const at::Tensor loss = sharded<3>(inputs.hidden, inputs.weights, targets, {}).loss;
  EXPECT_TRUE(at::equal(loss.isnan(), targets.eq(20)));
}

// The gradients of a rank's logits need the sum over all ranks, so each chunk of rows is a collective.
TEST(VocabularyShard, Cuts_rows_alike_on_ranks_with_more_and_fewer_rows_of_weights) {
  const auto chunk_rows = [](std::int64_t own_rows) {
    return detail::chunks_with_gradients({.products = {{values({4096, 8}, 1), {values({own_rows, 8}, 2)}}},
                                          .chunk_size = 600 * 1024,
                                          .shard = VocabularyShard{.gather = {}, .most_rows = 1000}})
        .num_rows;
  };
  EXPECT_EQ(chunk_rows(1000), 592);  // seven chunks of at most 600 rows
  EXPECT_EQ(chunk_rows(200), 592);
  EXPECT_EQ(chunk_rows(1), 592);
}

TEST(VocabularyShard, Refuses_more_rows_than_any_rank_has) {
  const Inputs inputs;
  const auto run = [&](const VocabularyShard& shard) {
    (void)linear_cross_entropy(inputs.hidden, inputs.weights, inputs.targets, {.shard = shard});
  };
  const auto gather = [](const at::Tensor& x) { return x.unsqueeze(0); };
  EXPECT_NO_THROW(run({.gather = gather, .most_rows = 20}));
  EXPECT_THAT([&] { run({.gather = gather, .most_rows = 19}); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("this rank's 20 rows of weight, got 19")));
  EXPECT_THAT([&] { run({.gather = {}, .most_rows = 20}); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("got no function")));
}

}  // namespace
}  // namespace d9d::kernels::vocabulary_shard_test
