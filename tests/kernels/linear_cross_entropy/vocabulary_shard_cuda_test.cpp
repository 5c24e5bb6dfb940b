// linear_cross_entropy of ranks that have parts of the vocabulary, all on one GPU, compared with the whole on one rank
// and with dense logits in fp64.
#include <cmath>
#include <limits>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/linear_cross_entropy/gradient_filter_testing.h"
#include "tests/kernels/linear_cross_entropy/vocabulary_shard_testing.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace d9d::kernels::vocabulary_shard_cuda_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::dense;
using ::d9d::testing::kGpu;
using ::d9d::testing::labels;
using ::d9d::testing::leaf;
using ::d9d::testing::LinearCrossEntropyOp;
using ::d9d::testing::low_rank_form;
using ::d9d::testing::sharded;
using ::d9d::testing::values;
using Results = std::map<std::string, at::Tensor>;

class VocabularyShardCuda : public testing::CudaTest {};

struct Problem {
  at::Tensor hidden = values({203, 48}, 1);
  // Over three ranks: 104, 104, 103 rows; none; 1, 0, 0; 230, 230, 228.
  std::vector<at::Tensor> weights = {values({311, 48}, 2) * 0.4, values({0, 48}, 3), values({1, 48}, 4) * 0.4,
                                     values({688, 48}, 5) * 0.4};
  at::Tensor targets = labels({203}, 1000, 9);
  LinearCrossEntropyOptions options = {};
  bool is_uniform = true;  // every target gets the same gradient, and lse gets none
};

LinearCrossEntropyOutput low_rank_shards(const at::Tensor& hidden, at::TensorList weight, const at::Tensor& targets,
                                         const LinearCrossEntropyOptions& options) {
  return low_rank_form(sharded<3>, hidden, weight, targets, options);
}

// Runs with the numbers that the problem has in `dtype`, in `compute`. Returns outputs and gradients.
Results run(const Problem& problem, LinearCrossEntropyOp op, at::ScalarType dtype, at::ScalarType compute) {
  const auto moved = [&](const at::Tensor& tensor) { return leaf(tensor.to(kGpu, dtype).to(compute)); };
  const at::Tensor hidden = moved(problem.hidden);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& weight : problem.weights) weights.push_back(moved(weight));
  LinearCrossEntropyOptions options = problem.options;
  if (options.bias) options.bias = moved(*options.bias);
  const LinearCrossEntropyOutput output = op(hidden, weights, problem.targets.to(kGpu), options);
  const at::TensorOptions wide = output.loss.options();
  if (problem.is_uniform) {
    backward({output.loss}, {at::full({}, 0.37, wide).expand(output.loss.sizes())});
  } else {
    backward({output.loss, output.lse},
             {values(output.loss.sizes(), 20).to(wide), values(output.lse.sizes(), 21).to(wide)});
  }
  std::vector<at::Tensor> of_weights;
  for (const at::Tensor& weight : weights) of_weights.push_back(weight.grad());
  Results results = {{"loss", output.loss.detach()},
                     {"lse", output.lse.detach()},
                     {"grad of hidden", hidden.grad()},
                     {"grad of weights", at::cat(of_weights)}};
  if (options.bias) results["grad of bias"] = options.bias->grad();
  return results;
}

// In half precision no result may err more than that of one rank on the same road.
void expect_as_exact_as_one_rank(const Problem& problem, at::ScalarType dtype, LinearCrossEntropyOp op = sharded<3>) {
  const Results actual = run(problem, op, dtype, dtype), exact = run(problem, dense, dtype, at::kDouble);
  if (dtype == at::kDouble) return test::expect_all_close(actual, exact, test::tolerance("fp64"));
  testing::expect_no_worse(actual, run(problem, linear_cross_entropy, dtype, dtype), exact);
}

TEST_F(VocabularyShardCuda, Is_as_exact_as_one_rank_for_every_option) {
  const at::Tensor bias = values({1000}, 4);
  const std::vector<LinearCrossEntropyOptions> all = {{},
                                                      {.bias = bias},
                                                      {.softcap = 1.5},
                                                      {.z_loss_weight = 0.1},
                                                      {.bias = bias, .softcap = 2.0, .z_loss_weight = 0.3}};
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    for (std::size_t index = 0; index < all.size(); ++index) {
      for (const bool in_forward : {false, true}) {
        for (const bool is_uniform : {true, false}) {
          SCOPED_TRACE(cat(dtype, ", option ", index, in_forward ? ", in forward" : "", is_uniform ? ", uniform" : ""));
          Problem one{.options = all[index], .is_uniform = is_uniform};
          one.options.gradients_in_forward = in_forward;
          expect_as_exact_as_one_rank(one, dtype);
          expect_as_exact_as_one_rank(one, dtype, low_rank_shards);
        }
      }
    }
  }
}

// Ranks have different numbers of rows of weights, but gather as often.
TEST_F(VocabularyShardCuda, Is_as_exact_as_one_rank_in_many_chunks_of_rows) {
  for (const std::int64_t chunk_rows : {8, 40, 104}) {
    for (const bool in_forward : {false, true}) {
      SCOPED_TRACE(cat(chunk_rows, in_forward ? ", in forward" : ""));
      expect_as_exact_as_one_rank({.options = {.chunk_size = chunk_rows * 384, .gradients_in_forward = in_forward}},
                                  at::kBFloat16);
    }
  }
}

// By more than the exponent of the numbers holds, with targets on the ranks below. Logits of a rank may all be -inf.
TEST_F(VocabularyShardCuda, Is_as_exact_as_one_rank_where_the_logits_of_ranks_are_far_apart) {
  for (const double below : {10.0, 30.0, 2000.0, std::numeric_limits<double>::infinity()}) {
    for (const bool in_forward : {false, true}) {
      SCOPED_TRACE(cat(below, in_forward ? ", in forward" : ""));
      at::Tensor bias = at::zeros({1000}, at::kDouble);
      bias.narrow(0, 0, 104).fill_(-below);    // of rank 0
      bias.narrow(0, 311, 231).fill_(-below);  // of rank 0
      Problem one{.options = {.bias = bias, .gradients_in_forward = in_forward}};
      if (std::isinf(below)) one.targets = at::where(one.targets.ge(0), one.targets.remainder(200) + 105, one.targets);
      expect_as_exact_as_one_rank(one, at::kBFloat16);
      expect_as_exact_as_one_rank(one, at::kDouble);
    }
  }
}

TEST_F(VocabularyShardCuda, Stays_within_the_bound_of_the_filter) {
  for (const bool in_forward : {false, true}) {
    const at::ScalarType dtype = in_forward ? at::kBFloat16 : at::kDouble;
    testing::FilterCase one = testing::peaked_case({900, 1500});
    one.grad_loss = at::full({}, 0.37, at::kDouble).expand({300});
    one.grad_lse = at::Tensor();
    LinearCrossEntropyOptions options{.gradients_in_forward = in_forward};
    const auto gradients = [&] { return testing::filter_gradients(one, options, sharded<3>, dtype, kGpu); };
    const testing::FilterGradients whole = gradients();
    options.filter_eps = 1e-3;
    const testing::FilterGradients actual = gradients();
    const double rounding = test::tolerance("filtered bf16").value;
    options.filter_eps = 1e-3 * (1 + rounding);  // gradients of logits are rounded before they are compared
    const testing::FilterGradients bound = testing::DenseFilter(one, options, dtype).bound();
    // In bf16 the ranks' summands are rounded, which cancel.
    if (!in_forward) {
      EXPECT_LE(testing::share_of_bound(actual.hidden, whole.hidden, bound.hidden, rounding), 1);
    }
    EXPECT_LE(testing::share_of_bound(actual.weights, whole.weights, bound.weights, rounding), 1);
    EXPECT_FALSE(at::equal(actual.hidden, whole.hidden));
    EXPECT_FALSE(at::equal(actual.weights, whole.weights));
  }
}

TEST_F(VocabularyShardCuda, Gives_nan_for_a_target_that_no_rank_has) {
  for (const bool in_forward : {false, true}) {
    Problem one{.options = {.gradients_in_forward = in_forward}};
    one.targets = at::where(one.targets.ge(900), 1000, one.targets);
    const Results results = run(one, sharded<3>, at::kBFloat16, at::kBFloat16);
    EXPECT_TRUE(at::equal(results.at("loss").isnan().cpu(), one.targets.eq(1000)));
  }
}

TEST_F(VocabularyShardCuda, Does_not_wait_for_the_device) {
  const at::Tensor hidden = leaf(values({200, 64}, 1).to(kGpu, at::kBFloat16)),
                   weight = leaf(values({3000, 64}, 2).to(kGpu, at::kBFloat16)),
                   targets = labels({200}, 3000, 3).to(kGpu);
  const auto gather = [](const at::Tensor& x) { return at::stack({x, x}); };  // two ranks with the same weights
  for (const bool in_forward : {false, true}) {
    EXPECT_FALSE(test::waits_for_device([&] {
      linear_cross_entropy(
          hidden, weight, targets,
          {.gradients_in_forward = in_forward, .shard = VocabularyShard{.gather = gather, .most_rows = 3000}})
          .loss.sum()
          .backward();
    })) << in_forward;
  }
}

}  // namespace
}  // namespace d9d::kernels::vocabulary_shard_cuda_test
