#include "d9d/kernels/linear/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear/adjacent_matrices.h"
#include "d9d/kernels/linear/linear_gemms.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::linear_test {
namespace {

using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

std::vector<at::Tensor> composition(const std::vector<at::Tensor>& in) {
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 1; i < in.size(); ++i) outputs.push_back(at::linear(in[0], in[i]));
  return outputs;
}

std::vector<at::Tensor> ours(const std::vector<at::Tensor>& in) { return linears(in[0], {in.begin() + 1, in.end()}); }

// Matrices with the given numbers of rows, one after another in one buffer.
std::vector<at::Tensor> stacked(const std::vector<std::int64_t>& rows, std::int64_t columns, std::uint64_t seed) {
  std::int64_t sum = 0;
  for (const std::int64_t each : rows) sum += each;
  return values({sum, columns}, seed).split_with_sizes(rows, 0);
}
std::vector<at::Tensor> side_by_side(std::int64_t rows, const std::vector<std::int64_t>& columns, std::uint64_t seed) {
  std::int64_t sum = 0;
  for (const std::int64_t each : columns) sum += each;
  return values({rows, sum}, seed).split_with_sizes(columns, 1);
}

TEST(Linear, Equals_that_of_ATen_for_every_shape) {
  for (const std::vector<std::int64_t>& lead :
       std::vector<std::vector<std::int64_t>>{{}, {0}, {1}, {5}, {2, 3}, {2, 0}}) {
    std::vector<std::int64_t> shape = lead;
    shape.push_back(7);
    EXPECT_LT(worst_difference(ours, composition, {values(shape, 1), values({4, 7}, 2)}), 1e-13)
        << at::IntArrayRef(lead);
    EXPECT_LT(worst_difference(ours, composition,
                               {values(shape, 1), values({4, 7}, 2), values({1, 7}, 3), values({6, 7}, 4)}),
              1e-13)
        << at::IntArrayRef(lead);
  }
}

std::vector<at::Tensor> composition_with_biases(const std::vector<at::Tensor>& in) {
  return {at::linear(in[0], in[1], in[3]), at::linear(in[0], in[2], in[4])};
}

// Few rows and a large weight in float32, which another library multiplies, beside one row more than it takes.
TEST(Linear, Of_few_rows_equals_that_in_float64) {
  for (const std::int64_t num_rows : {1, 2, 8, 32, 33}) {
    const at::Tensor x = values({num_rows, 300}, 1, at::kFloat), weight = values({500, 300}, 2, at::kFloat);
    const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
    const at::Tensor error = kernels::linear(x, weight).to(at::kDouble) - exact;
    EXPECT_LT((error.norm() / exact.norm()).item<double>(), 1e-6) << num_rows;
    EXPECT_EQ(kernels::linear(x, weight).scalar_type(), at::kFloat);
    EXPECT_TRUE(kernels::linear(x, weight).is_contiguous());
  }
}

TEST(Linear, With_biases_equals_that_of_ATen) {
  const auto biased = [](const std::vector<at::Tensor>& in) { return linears(in[0], {in[1], in[2]}, {in[3], in[4]}); };
  for (const std::vector<std::int64_t>& lead : std::vector<std::vector<std::int64_t>>{{}, {0}, {5}, {2, 3}}) {
    std::vector<std::int64_t> shape = lead;
    shape.push_back(7);
    EXPECT_LT(
        worst_difference(biased, composition_with_biases,
                         {values(shape, 1), values({4, 7}, 2), values({6, 7}, 3), values({4}, 4), values({6}, 5)}),
        1e-13)
        << at::IntArrayRef(lead);
  }
}

TEST(Linear, Computes_gradients_of_biases_beside_frozen_weights) {
  const at::Tensor bias = leaf(values({4}, 3));
  const at::Tensor x = values({3, 7}, 1);
  linears(x, {values({4, 7}, 2)}, {bias})[0].sum().backward();
  EXPECT_LT(difference(bias.grad(), at::full({4}, 3.0, at::kDouble)), 1e-13);
}

TEST(Linear, Takes_rows_with_strides_and_gradients_that_are_expanded) {
  const at::Tensor x = values({3, 4, 10}, 1).narrow(2, 2, 7);
  const at::Tensor w = leaf(values({5, 7}, 2));
  kernels::linear(x, w).sum().backward();
  EXPECT_LT(difference(w.grad(), x.flatten(0, 1).sum(0).expand({5, 7})), 1e-13);
}

TEST(Linear, Skips_outputs_that_nothing_used) {
  const at::Tensor x = leaf(values({3, 7}, 1));
  const at::Tensor a = leaf(values({4, 7}, 2));
  const at::Tensor b = leaf(values({2, 7}, 3));
  linears(x, {a, b})[1].sum().backward();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_LT(difference(x.grad(), b.detach().sum(0).expand({3, 7})), 1e-13);
}

TEST(Linear, Keeps_its_input_only_for_trained_weights) {
  const at::Tensor frozen = values({4, 7}, 2);
  const at::Tensor x = leaf(values({3, 7}, 1));
  at::Tensor hidden = x * 1;
  const at::Tensor y = kernels::linear(hidden, frozen);
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(hidden.getIntrusivePtr());
  hidden.reset();
  EXPECT_TRUE(watched.expired());
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

// x, three weights, a bias for each, A and B of terms for the last two outputs; the ranks differ.
std::vector<at::Tensor> inputs_with_terms(std::vector<std::int64_t> lead) {
  lead.push_back(7);
  return {values(lead, 1), values({4, 7}, 2), values({6, 7}, 3), values({5, 7}, 4),  values({4}, 5),    values({6}, 6),
          values({5}, 7),  values({2, 7}, 8), values({3, 7}, 9), values({6, 2}, 10), values({5, 3}, 11)};
}

std::vector<at::Tensor> ours_with_terms(const std::vector<at::Tensor>& in) {
  return linears(in[0], {in[1], in[2], in[3]}, {in[4], in[5], in[6]},
                 {{.a = in[7], .b = in[9], .scale = 0.5, .output = 1}, {.a = in[8], .b = in[10], .output = 2}});
}

std::vector<at::Tensor> composition_with_terms(const std::vector<at::Tensor>& in) {
  return {at::linear(in[0], in[1], in[4]),
          at::linear(in[0], in[2], in[5]) + 0.5 * at::linear(at::linear(in[0], in[7]), in[9]),
          at::linear(in[0], in[3], in[6]) + at::linear(at::linear(in[0], in[8]), in[10])};
}

TEST(LinearTerms, Equal_products_of_their_own) {
  for (const std::vector<std::int64_t>& lead : std::vector<std::vector<std::int64_t>>{{}, {0}, {5}, {2, 3}}) {
    EXPECT_LT(worst_difference(ours_with_terms, composition_with_terms, inputs_with_terms(lead)), 1e-13)
        << at::IntArrayRef(lead);
  }
}

TEST(LinearTerms, Skip_outputs_that_nothing_used) {
  std::vector<at::Tensor> in = inputs_with_terms({3});
  for (at::Tensor& each : in) each = leaf(each);
  ours_with_terms(in)[2].sum().backward();
  EXPECT_FALSE(in[9].grad().defined());
  const at::Tensor of_hidden = in[10].detach().sum(0);  // [3], the same for each row
  EXPECT_LT(difference(in[0].grad(), (in[3].detach().sum(0) + of_hidden.matmul(in[8].detach())).expand({3, 7})), 1e-13);
  EXPECT_LT(difference(in[8].grad(), of_hidden.unsqueeze(1) * in[0].detach().sum(0)), 1e-13);
}

// As when a model's first layer has adapters.
TEST(LinearTerms, Get_gradients_beside_frozen_weights_and_inputs) {
  std::vector<at::Tensor> in = inputs_with_terms({3});
  for (std::size_t i = 7; i < 11; ++i) in[i] = leaf(in[i]);
  std::vector<at::Tensor> expected = in;
  for (std::size_t i = 7; i < 11; ++i) expected[i] = leaf(in[i].detach());
  const auto backward = [](const std::vector<at::Tensor>& y) {
    (y[1].square().sum() + y[2].square().sum()).backward();
  };
  backward(ours_with_terms(in));
  backward(composition_with_terms(expected));
  for (std::size_t i = 7; i < 11; ++i) EXPECT_LT(difference(in[i].grad(), expected[i].grad()), 1e-12) << i;
}

TEST(LinearTerms, Refuse_shapes_and_outputs_that_do_not_fit) {
  const at::Tensor x = values({3, 7}, 1);
  const std::vector<at::Tensor> weights = {values({4, 7}, 2)};
  const auto with = [&](const LowRankTerm& term) { (void)linears(x, weights, {}, {term}); };
  EXPECT_NO_THROW(with({.a = values({2, 7}, 3), .b = values({4, 2}, 4)}));
  EXPECT_THROW(with({.a = values({2, 6}, 3), .b = values({4, 2}, 4)}), ConfigError);
  EXPECT_THROW(with({.a = values({2, 7}, 3), .b = values({4, 3}, 4)}), ConfigError);
  EXPECT_THROW(with({.a = values({2, 7}, 3), .b = values({5, 2}, 4)}), ConfigError);
  EXPECT_THROW(with({.a = values({2, 7}, 3, at::kFloat), .b = values({4, 2}, 4)}), ConfigError);
  EXPECT_THROW(with({.a = values({2, 7}, 3), .b = values({4, 2}, 4), .output = 1}), ConfigError);
}

TEST(Linear, Refuses_shapes_and_dtypes_that_do_not_fit) {
  EXPECT_THROW((void)kernels::linear(values({3, 7}, 1), values({4, 6}, 2)), ConfigError);
  EXPECT_THROW((void)kernels::linear(values({3, 7}, 1), values({4, 7}, 2, at::kFloat)), ConfigError);
  const std::vector<at::Tensor> weights = {values({4, 7}, 2), values({5, 7}, 3)};
  EXPECT_THROW((void)linears(values({3, 7}, 1), weights, {values({4}, 4)}), ConfigError);
  EXPECT_THROW((void)linears(values({3, 7}, 1), weights, {values({4}, 4), values({4}, 5)}), ConfigError);
  EXPECT_THROW((void)linears(values({3, 7}, 1), weights, {values({4}, 4), values({5}, 5, at::kFloat)}), ConfigError);
}

TEST(LinearGradient, Is_added_to_its_place_in_that_dtype) {
  const at::Tensor x = values({6, 7}, 1, at::kFloat);
  const at::Tensor w = leaf(values({4, 7}, 2, at::kFloat));
  const at::Tensor place = at::empty({4, 7}, at::kDouble);
  bool has_values = false;
  const GradientHookHandle hook = on_gradient(w, {.arrived = [](const at::Tensor&) {},
                                                  .place =
                                                      [&] {
                                                        return GradientPlace{place, std::exchange(has_values, true)};
                                                      }});
  const at::Tensor expected = x.sum(0).expand({4, 7});
  kernels::linear(x, w).sum().backward();
  EXPECT_LT(difference(place, expected), 1e-6);
  kernels::linear(x, w).sum().backward();
  EXPECT_LT(difference(place, 2 * expected), 1e-6);
  EXPECT_FALSE(w.grad().defined());
}

// Does on a CPU what a GPU does: adjacent weights, gradients and places are multiplied by one product.
TEST(LinearProducts, Of_joined_weights_are_slices_of_one) {
  const at::Tensor x = values({3, 7}, 1);
  std::vector<at::Tensor> weights = stacked({4, 2, 6}, 7, 2);
  weights.push_back(values({5, 7}, 3));
  const std::vector<at::Tensor> outputs = detail::linears_forward(x, weights, /*biases=*/{}, /*joins=*/true);
  EXPECT_TRUE(detail::follows_in_columns(outputs[0], outputs[1]) && detail::follows_in_columns(outputs[1], outputs[2]));
  EXPECT_FALSE(detail::follows_in_columns(outputs[2], outputs[3]));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_LT(difference(outputs[i], at::mm(x, weights[i].t())), 1e-13) << i;
}

TEST(LinearProducts, Of_joined_weights_add_each_its_bias) {
  const at::Tensor x = values({3, 7}, 1);
  const std::vector<at::Tensor> weights = stacked({4, 2}, 7, 2);
  const std::vector<at::Tensor> biases = {values({4}, 3), values({2}, 4)};
  const std::vector<at::Tensor> outputs = detail::linears_forward(x, weights, biases, /*joins=*/true);
  EXPECT_TRUE(detail::follows_in_columns(outputs[0], outputs[1]));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_LT(difference(outputs[i], at::linear(x, weights[i], biases[i])), 1e-13) << i;
  }
}

TEST(LinearProducts, Of_biases_are_sums_over_rows_added_to_their_places) {
  const std::vector<at::Tensor> grads = side_by_side(3, {4, 2, 6}, 3);
  const at::Tensor written = at::empty({4}, at::kDouble), added = values({6}, 4);
  const at::Tensor expected = added + grads[2].sum(0);
  const auto results =
      detail::linears_bias_gradients(grads, {GradientPlace{written, false}, {}, GradientPlace{added, true}});
  EXPECT_FALSE(results[0].defined() || results[2].defined());
  EXPECT_LT(difference(written, grads[0].sum(0)), 1e-13);
  EXPECT_LT(difference(results[1], grads[1].sum(0)), 1e-13);
  EXPECT_LT(difference(added, expected), 1e-13);
}

TEST(LinearProducts, Of_joined_gradients_equal_those_of_each) {
  const at::Tensor x = values({3, 7}, 1);
  std::vector<at::Tensor> weights = stacked({4, 2, 6}, 7, 2);
  std::vector<at::Tensor> grads = side_by_side(3, {4, 2, 6}, 3);
  at::Tensor expected = at::zeros({3, 7}, at::kDouble);
  for (std::size_t i = 0; i < 3; ++i) expected += at::mm(grads[i], weights[i]);
  EXPECT_LT(difference(detail::linears_input_gradient(grads, weights), expected), 1e-13);

  const std::vector<at::Tensor> of_weights = detail::linears_weight_gradients(grads, x, {{}, {}, {}});
  std::vector<at::Tensor> places = stacked({4, 2, 6}, 7, 4);
  std::vector<at::Tensor> sums;
  for (std::size_t i = 0; i < 3; ++i) sums.push_back(places[i] + at::mm(grads[i].t(), x));
  const auto added = detail::linears_weight_gradients(
      grads, x, {GradientPlace{places[0], true}, GradientPlace{places[1], true}, GradientPlace{places[2], true}});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_LT(difference(of_weights[i], at::mm(grads[i].t(), x)), 1e-13) << i;
    EXPECT_LT(difference(places[i], sums[i]), 1e-13) << i;
    EXPECT_FALSE(added[i].defined());
  }
}

TEST(LinearProducts, Of_places_in_different_states_are_apart) {
  const at::Tensor x = values({3, 7}, 1);
  const std::vector<at::Tensor> grads = side_by_side(3, {4, 2}, 3);
  std::vector<at::Tensor> places = stacked({4, 2}, 7, 4);
  const at::Tensor sum = places[0] + at::mm(grads[0].t(), x);
  (void)detail::linears_weight_gradients(grads, x, {GradientPlace{places[0], true}, GradientPlace{places[1], false}});
  EXPECT_LT(difference(places[0], sum), 1e-13);
  EXPECT_LT(difference(places[1], at::mm(grads[1].t(), x)), 1e-13);
}

TEST(Joined, Are_matrices_that_lie_together_and_no_others) {
  const at::Tensor buffer = values({6, 10}, 1);
  using detail::follows_in_columns;
  using detail::follows_in_rows;
  EXPECT_TRUE(follows_in_rows(buffer.narrow(0, 0, 2), buffer.narrow(0, 2, 4)));
  EXPECT_FALSE(follows_in_rows(buffer.narrow(0, 0, 2), buffer.narrow(0, 3, 3)));          // a gap
  EXPECT_FALSE(follows_in_rows(buffer.narrow(0, 2, 4), buffer.narrow(0, 0, 2)));          // the other way
  EXPECT_FALSE(follows_in_rows(buffer.narrow(0, 0, 2), buffer.clone().narrow(0, 2, 4)));  // other memory
  EXPECT_FALSE(follows_in_rows(buffer.narrow(1, 0, 2), buffer.narrow(1, 2, 2)));          // not contiguous
  EXPECT_TRUE(follows_in_columns(buffer.narrow(1, 0, 4), buffer.narrow(1, 4, 6)));
  EXPECT_FALSE(follows_in_columns(buffer.narrow(1, 0, 4), buffer.narrow(1, 5, 5)));  // a gap
  EXPECT_FALSE(follows_in_columns(buffer.view(-1).narrow(0, 0, 20).view({2, 10}),
                                  buffer.view(-1).narrow(0, 10, 20).view({2, 10})));  // would overlap
}

}  // namespace
}  // namespace d9d::kernels::linear_test
