#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/linear_cross_entropy/gradient_filter_testing.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace d9d::kernels::gradient_filter_cuda_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::DenseFilter;
using ::d9d::testing::expect_equal;
using ::d9d::testing::filter_gradients;
using ::d9d::testing::FilterCase;
using ::d9d::testing::filtered_options;
using ::d9d::testing::FilterGradients;
using ::d9d::testing::kGpu;
using ::d9d::testing::kIgnore;
using ::d9d::testing::leaf;
using ::d9d::testing::peaked_case;
using ::d9d::testing::share_of_bound;
using ::d9d::testing::share_of_zeros;
using ::d9d::testing::values;
using ::d9d::testing::with_low_rank;

constexpr double kEps = 1e-3;
constexpr ::d9d::testing::TileSize kTile = {.rows = 1, .columns = detail::kFilterTileColumns};

class GradientFilterCuda : public testing::CudaTest {};

FilterGradients on_gpu(const FilterCase& one, const LinearCrossEntropyOptions& options,
                       at::ScalarType dtype = at::kDouble) {
  return filter_gradients(one, options, linear_cross_entropy, dtype, kGpu);
}

// All targets get the same gradient, so that gradients in forward are used.
FilterCase uniform_case(const std::vector<std::int64_t>& splits, std::int64_t num_targets = 300) {
  FilterCase result = peaked_case(splits, num_targets);
  result.grad_loss = at::full({}, 0.37, at::kDouble).expand({num_targets});
  result.grad_lse = at::Tensor();
  return result;
}

// How the gradients are made: in which dtype, and together with the loss or not.
struct Road {
  at::ScalarType dtype;
  bool in_forward;
};
const std::vector<Road> kRoads = {
    {at::kDouble, false}, {at::kFloat, false}, {at::kHalf, false}, {at::kBFloat16, false}, {at::kBFloat16, true}};
std::string text_of(const Road& road) { return cat(road.dtype, road.in_forward ? ", in forward" : ""); }

// The filter moves no element further from the unfiltered result of the same kernels than its bound.
void expect_within_bound(const FilterCase& one, LinearCrossEntropyOptions options, const Road& road) {
  options.gradients_in_forward = road.in_forward;
  const FilterGradients actual = on_gpu(one, options, road.dtype);
  const double eps = options.filter_eps.value_or(0);
  options.filter_eps.reset();
  const FilterGradients whole = on_gpu(one, options, road.dtype);
  const double rounding = test::tolerance("filtered bf16").value;
  options.filter_eps = eps * (1 + rounding);  // gradients of logits are rounded before they are compared
  const DenseFilter exact(one, options, road.dtype);
  const FilterGradients bound = exact.bound();
  ASSERT_GT(share_of_zeros(exact.filtered(kTile)), 0.3);
  EXPECT_LE(share_of_bound(actual.hidden, whole.hidden, bound.hidden, rounding), 1);
  EXPECT_LE(share_of_bound(actual.weights, whole.weights, bound.weights, rounding), 1);
  EXPECT_FALSE(at::equal(actual.hidden, whole.hidden));
  EXPECT_FALSE(at::equal(actual.weights, whole.weights));
}

TEST_F(GradientFilterCuda, Leaves_out_exactly_the_tiles_below_eps) {
  const std::vector<LinearCrossEntropyOptions> all = filtered_options(kEps);
  for (std::size_t index = 0; index < all.size(); ++index) {
    for (const bool has_lse_gradient : {true, false}) {
      SCOPED_TRACE(cat("option ", index, has_lse_gradient ? ", gradient of lse" : ""));
      FilterCase one = peaked_case({300, 0, 1, 499});
      if (!has_lse_gradient) one.grad_lse = at::Tensor();
      const DenseFilter expected(one, all[index]);
      const at::Tensor kept = expected.filtered(kTile);
      ASSERT_GT(share_of_zeros(kept), 0.3);
      ASSERT_LT(share_of_zeros(kept), 0.9);
      expect_equal(on_gpu(one, all[index]), expected.gradients(kept), test::tolerance("fp64"));
    }
  }
}

TEST_F(GradientFilterCuda, Leaves_out_the_same_tiles_of_a_term_of_low_rank) {
  const FilterCase one = peaked_case({300, 0, 1, 499});
  for (const LinearCrossEntropyOptions& options : filtered_options(kEps)) {
    const FilterGradients expected = on_gpu(one, options);
    expect_equal(
        filter_gradients(one, options, with_low_rank, at::kDouble, kGpu),
        {expected.hidden.cpu(), expected.weights.cpu(), expected.bias.defined() ? expected.bias.cpu() : at::Tensor()},
        test::tolerance("fp64"));
  }
}

TEST_F(GradientFilterCuda, Stays_within_its_bound_in_every_dtype) {
  for (const Road& road : kRoads) {
    SCOPED_TRACE(text_of(road));
    expect_within_bound(uniform_case({300, 0, 1, 499}), {.filter_eps = kEps}, road);
    expect_within_bound(uniform_case({800}), {.bias = values({800}, 30), .softcap = 35.0, .filter_eps = kEps}, road);
    expect_within_bound(uniform_case({800}), {.z_loss_weight = 0.05, .filter_eps = kEps}, road);
    expect_within_bound(uniform_case({800}), with_preset({}, LinearCrossEntropyPreset::kCce, at::kBFloat16), road);
  }
}

TEST_F(GradientFilterCuda, Stays_within_its_bound_in_several_chunks) {
  for (const Road& road : kRoads) {
    for (const std::int64_t chunk_size : {64 * 200, 128 * 1600}) {
      SCOPED_TRACE(cat(text_of(road), ", chunk size ", chunk_size));
      expect_within_bound(uniform_case({300, 500}, 500), {.chunk_size = chunk_size, .filter_eps = kEps}, road);
    }
  }
}

TEST_F(GradientFilterCuda, Differs_from_the_cpu_within_the_bound) {
  const FilterCase one = peaked_case({300, 500});
  const LinearCrossEntropyOptions options{.filter_eps = kEps};
  const FilterGradients bound = DenseFilter(one, options).bound();
  const FilterGradients here = filter_gradients(one, options, linear_cross_entropy), there = on_gpu(one, options);
  const double rounding = test::tolerance("fp64").value;
  EXPECT_LE(share_of_bound(there.hidden, here.hidden, bound.hidden, rounding), 1);
  EXPECT_LE(share_of_bound(there.weights, here.weights, bound.weights, rounding), 1);
}

// Columns from 512 on are whole tiles, of which every softmax is below eps.
TEST_F(GradientFilterCuda, Gives_weights_without_a_kept_tile_no_gradient) {
  for (const Road& road : kRoads) {
    SCOPED_TRACE(text_of(road));
    LinearCrossEntropyOptions options{.gradients_in_forward = road.in_forward};
    const auto far = [&] { return on_gpu(uniform_case({800}), options, road.dtype).weights.narrow(0, 512, 288); };
    EXPECT_LT(share_of_zeros(far()), road.dtype == at::kHalf ? 0.95 : 0.1);  // fp16 rounds many to zero
    options.filter_eps = kEps;
    EXPECT_EQ(share_of_zeros(far()), 1);
  }
}

TEST_F(GradientFilterCuda, Is_of_one_side_where_the_other_and_the_bias_are_whole) {
  const FilterCase one = uniform_case({300, 500});
  for (const Road& road : kRoads) {
    SCOPED_TRACE(text_of(road));
    LinearCrossEntropyOptions options{.bias = values({800}, 30), .gradients_in_forward = road.in_forward};
    const FilterGradients whole = on_gpu(one, options, road.dtype);
    options.filter_eps = kEps;
    const FilterGradients both = on_gpu(one, options, road.dtype);
    options.filter_c_grad = false;
    const FilterGradients of_e = on_gpu(one, options, road.dtype);
    options.filter_e_grad = false;
    options.filter_c_grad = true;
    const FilterGradients of_c = on_gpu(one, options, road.dtype);
    EXPECT_FALSE(at::equal(both.hidden, whole.hidden));
    EXPECT_FALSE(at::equal(both.weights, whole.weights));
    EXPECT_TRUE(at::equal(of_e.hidden, both.hidden));
    EXPECT_TRUE(at::equal(of_e.weights, whole.weights));
    EXPECT_TRUE(at::equal(of_c.hidden, whole.hidden));
    EXPECT_TRUE(at::equal(of_c.weights, both.weights));
    for (const FilterGradients& gradients : {both, of_e, of_c}) EXPECT_TRUE(at::equal(gradients.bias, whole.bias));
  }
}

TEST_F(GradientFilterCuda, Is_bit_equal_from_run_to_run_and_does_not_wait_for_the_device) {
  for (const Road& road : kRoads) {
    SCOPED_TRACE(text_of(road));
    const FilterCase one = uniform_case({300, 500});
    const LinearCrossEntropyOptions options{.gradients_in_forward = road.in_forward, .filter_eps = kEps};
    const FilterGradients first = on_gpu(one, options, road.dtype), second = on_gpu(one, options, road.dtype);
    EXPECT_TRUE(at::equal(first.hidden, second.hidden));
    EXPECT_TRUE(at::equal(first.weights, second.weights));
    const at::Tensor hidden = leaf(one.hidden.to(kGpu, road.dtype)), targets = one.targets.to(kGpu);
    const at::Tensor weight = leaf(at::cat(one.weights).to(kGpu, road.dtype));
    EXPECT_FALSE(
        test::waits_for_device([&] { linear_cross_entropy(hidden, weight, targets, options).loss.sum().backward(); }));
  }
}

TEST_F(GradientFilterCuda, Does_not_hide_nan) {
  for (const Road& road : kRoads) {
    SCOPED_TRACE(text_of(road));
    FilterCase one = uniform_case({800});
    one.hidden[200][3] = std::numeric_limits<double>::quiet_NaN();
    one.targets[200] = 5;
    const FilterGradients actual =
        on_gpu(one, {.gradients_in_forward = road.in_forward, .filter_eps = kEps}, road.dtype);
    EXPECT_TRUE(actual.hidden[200].isnan().all().item<bool>());
    EXPECT_FALSE(actual.hidden[100].isnan().any().item<bool>());
    EXPECT_TRUE(actual.weights.isnan().all().item<bool>());
  }
}

// The composition of ATen operators, on GPUs without this op's kernels.
TEST_F(GradientFilterCuda, Is_the_filter_of_the_cpu_where_there_are_no_kernels) {
  const FilterCase one = uniform_case({800});
  const detail::LinearCrossEntropyInput input{
      .products = {{one.hidden.to(kGpu), {one.weights[0].to(kGpu)}}},
      .targets = one.targets.masked_fill(one.targets.eq(kIgnore), detail::kIgnored).to(kGpu),
      .chunk_size = std::int64_t{1} << 26,
      .filter = {.eps = kEps, .of_hidden = true, .of_weights = true}};
  const at::Tensor lse = detail::linear_cross_entropy_forward_aten(input).lse, grad_loss = one.grad_loss.to(kGpu);
  const auto work = [&] {
    return detail::linear_cross_entropy_backward_aten(input, lse, grad_loss, {},
                                                      {.products = {{.hidden = true, .weights = {true}}}});
  };
  const detail::LinearCrossEntropyBackward there = work();
  const FilterGradients here = filter_gradients(one, {.filter_eps = kEps}, linear_cross_entropy);
  test::expect_close("hidden", there.products[0].hidden.cpu(), here.hidden, test::tolerance("fp64"));
  test::expect_close("weights", there.products[0].weights[0].cpu(), here.weights, test::tolerance("fp64"));
  EXPECT_FALSE(test::waits_for_device([&] { (void)work(); }));
}

}  // namespace
}  // namespace d9d::kernels::gradient_filter_cuda_test
