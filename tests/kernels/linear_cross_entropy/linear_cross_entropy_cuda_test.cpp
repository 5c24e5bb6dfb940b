#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/linear_cross_entropy/linear_cross_entropy_testing.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace d9d::kernels::linear_cross_entropy_cuda_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::dense;
using ::d9d::testing::difference;
using ::d9d::testing::kDtypes;
using ::d9d::testing::kGpu;
using ::d9d::testing::kIgnore;
using ::d9d::testing::labels;
using ::d9d::testing::leaf;
using ::d9d::testing::ramp;
using ::d9d::testing::values;
using ::d9d::testing::with_low_rank;
using Results = std::map<std::string, at::Tensor>;

class LinearCrossEntropyCuda : public testing::CudaTest {};

struct Problem {
  at::Tensor hidden;
  std::vector<at::Tensor> weights;
  at::Tensor targets;
  LinearCrossEntropyOptions options = {};
  bool is_uniform = true;  // every target gets the same gradient, and lse gets none
  double grad = 0.37;
};

Problem problem(std::int64_t rows, std::int64_t hidden_size, const std::vector<std::int64_t>& splits,
                at::ScalarType dtype, const LinearCrossEntropyOptions& options = {}) {
  Problem result{.hidden = values({rows, hidden_size}, 1).to(kGpu, dtype), .options = options};
  std::int64_t vocabulary = 0;
  for (const std::int64_t size : splits) {
    result.weights.push_back((values({size, hidden_size}, 2 + result.weights.size()) * 0.4).to(kGpu, dtype));
    vocabulary += size;
  }
  result.targets = labels({rows}, vocabulary, 9).to(kGpu);
  if (options.bias) result.options.bias = options.bias->to(kGpu, dtype);
  return result;
}

std::vector<at::Tensor> grads_of(const Problem& problem, const LinearCrossEntropyOutput& output) {
  const at::TensorOptions options = output.loss.options();
  if (problem.is_uniform) return {at::full({}, problem.grad, options).expand(output.loss.sizes())};
  return {values(output.loss.sizes(), 20).to(options), values(output.lse.sizes(), 21).to(options)};
}

using Op = LinearCrossEntropyOutput (*)(const at::Tensor&, at::TensorList, const at::Tensor&,
                                        const LinearCrossEntropyOptions&);

// Runs in `dtype` with the problem's numbers; returns outputs and the gradients of all inputs.
std::pair<Results, Results> run(const Problem& problem, Op op, at::ScalarType dtype) {
  LinearCrossEntropyOptions options = problem.options;
  const at::Tensor hidden = leaf(problem.hidden.to(dtype));
  std::vector<at::Tensor> weights;
  for (const at::Tensor& weight : problem.weights) weights.push_back(leaf(weight.to(dtype)));
  if (options.bias) options.bias = leaf(options.bias->to(dtype));
  const auto output = op(hidden, weights, problem.targets, options);
  const std::vector<at::Tensor> grads = grads_of(problem, output);
  backward(grads.size() == 1 ? std::vector{output.loss} : std::vector{output.loss, output.lse}, grads);
  Results gradients = {{"hidden", hidden.grad()}};
  std::vector<at::Tensor> weight_grads;
  for (const at::Tensor& weight : weights) weight_grads.push_back(weight.grad());
  gradients["weights"] = at::cat(weight_grads);
  if (options.bias) gradients["bias"] = options.bias->grad();
  return {{{"loss", output.loss.detach()}, {"lse", output.lse.detach()}}, gradients};
}

// The composition of ATen operators that is used for chunks on other devices, for reduction none.
std::pair<Results, Results> run_aten(const Problem& problem) {
  const detail::LinearCrossEntropyInput input{
      .products = {{problem.hidden, problem.weights}},
      .bias = problem.options.bias.value_or(at::Tensor()),
      .targets = problem.targets.masked_fill(problem.targets.eq(kIgnore), detail::kIgnored),
      .softcap = problem.options.softcap,
      .z_loss_weight = problem.options.z_loss_weight,
      .chunk_size = std::int64_t{1} << 26};
  const auto [loss, lse] = detail::linear_cross_entropy_forward_aten(input);
  const std::vector<at::Tensor> grads = grads_of(problem, {.loss = loss, .lse = lse});
  const auto result = detail::linear_cross_entropy_backward_aten(
      input, lse, grads[0], grads.size() > 1 ? grads[1] : at::Tensor(),
      {.products = {{.hidden = true, .weights = std::vector<bool>(problem.weights.size(), true)}},
       .bias = problem.options.bias.has_value()});
  Results gradients = {{"hidden", result.products[0].hidden}, {"weights", at::cat(result.products[0].weights)}};
  if (problem.options.bias) gradients["bias"] = result.bias;
  return {{{"loss", loss}, {"lse", lse}}, gradients};
}

void expect_no_worse_than_aten(const Problem& problem, Op op = linear_cross_entropy) {
  const at::ScalarType dtype = problem.hidden.scalar_type();
  const auto [outputs, gradients] = run(problem, op, dtype);
  const auto [exact_outputs, exact_gradients] = run(problem, dense, at::kDouble);
  if (dtype == at::kDouble) {
    test::expect_all_close(outputs, exact_outputs, test::tolerance("fp64"));
    test::expect_all_close(gradients, exact_gradients, test::tolerance("fp64"));
  } else {
    const auto [aten_outputs, aten_gradients] = run_aten(problem);
    testing::expect_no_worse(outputs, aten_outputs, exact_outputs);
    testing::expect_no_worse(gradients, aten_gradients, exact_gradients);
  }
}

TEST_F(LinearCrossEntropyCuda, Is_as_exact_as_aten_for_every_option) {
  const at::Tensor bias = values({1000}, 4);
  const std::vector<LinearCrossEntropyOptions> all = {{},
                                                      {.bias = bias},
                                                      {.softcap = 1.5},
                                                      {.z_loss_weight = 0.1},
                                                      {.bias = bias, .softcap = 2.0, .z_loss_weight = 0.3}};
  for (const at::ScalarType dtype : kDtypes) {
    for (std::size_t index = 0; index < all.size(); ++index) {
      for (const bool in_forward : {false, true}) {
        for (const bool is_uniform : {true, false}) {
          SCOPED_TRACE(cat(dtype, ", option ", index, in_forward ? ", in forward" : "", is_uniform ? ", uniform" : ""));
          LinearCrossEntropyOptions options = all[index];
          options.gradients_in_forward = in_forward;
          Problem one = problem(203, 48, {311, 0, 1, 688}, dtype, options);
          one.is_uniform = is_uniform;
          expect_no_worse_than_aten(one);
        }
      }
    }
  }
}

TEST_F(LinearCrossEntropyCuda, Is_as_exact_as_aten_with_a_term_of_low_rank) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool in_forward : {false, true}) {
      for (const bool is_uniform : {true, false}) {
        for (const std::int64_t chunk_size : {64 * 203, 1 << 26}) {
          SCOPED_TRACE(
              cat(dtype, ", chunk size ", chunk_size, in_forward ? ", in forward" : "", is_uniform ? ", uniform" : ""));
          Problem one = problem(203, 48, {311, 0, 1, 688}, dtype,
                                {.bias = values({1000}, 4),
                                 .softcap = 2.0,
                                 .chunk_size = chunk_size,
                                 .gradients_in_forward = in_forward});
          one.is_uniform = is_uniform;
          expect_no_worse_than_aten(one, with_low_rank);
        }
      }
    }
  }
}

// As the adapter of a frozen head: no gradient of the weight is made.
TEST_F(LinearCrossEntropyCuda, Trains_a_term_of_low_rank_alone) {
  for (const bool in_forward : {false, true}) {
    const Problem one = problem(128, 48, {1000}, at::kBFloat16);
    const LowRankLogits term{.hidden = leaf(values({128, 8}, 31).to(kGpu, at::kBFloat16)),
                             .weights = {leaf((values({1000, 8}, 32) * 0.4).to(kGpu, at::kBFloat16))}};
    const auto output = linear_cross_entropy(one.hidden, one.weights, one.targets,
                                             {.low_rank = term, .gradients_in_forward = in_forward});
    output.loss.sum().backward();
    const at::Tensor hidden = leaf(at::cat({one.hidden, term.hidden}, 1).detach().to(at::kDouble));
    const at::Tensor weight = leaf(at::cat({one.weights[0], term.weights[0]}, 1).detach().to(at::kDouble));
    dense(hidden, weight, one.targets, {}).loss.sum().backward();
    EXPECT_FALSE(one.weights[0].grad().defined());
    const double rounding = 2e-2;  // bf16 gradients of logits and factors
    EXPECT_LT(difference(term.hidden.grad(), hidden.grad().narrow(1, 48, 8)), rounding);
    EXPECT_LT(difference(term.weights[0].grad(), weight.grad().narrow(1, 48, 8)), rounding);
  }
}

TEST_F(LinearCrossEntropyCuda, Is_as_exact_as_aten_for_every_shape) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool in_forward : {false, true}) {
      for (const std::int64_t rows : {1, 31, 32, 33, 129})
        for (const std::int64_t vocabulary : {2, 63, 65, 4095, 4097, 9001}) {
          SCOPED_TRACE(cat(dtype, " ", rows, " rows, vocabulary ", vocabulary, in_forward ? ", in forward" : ""));
          if (in_forward && rows == 1) continue;  // the roundings of a single target's gradient do not average out
          Problem one = problem(rows, 40, {vocabulary}, dtype, {.gradients_in_forward = in_forward});
          one.grad = 0.25;  // a value for which one more rounding would be visible
          expect_no_worse_than_aten(one);
        }
      for (const std::int64_t hidden_size : {1, 7, 33}) {
        SCOPED_TRACE(cat(dtype, " hidden size ", hidden_size, in_forward ? ", in forward" : ""));
        expect_no_worse_than_aten(problem(37, hidden_size, {50}, dtype, {.gradients_in_forward = in_forward}));
      }
    }
  }
}

TEST_F(LinearCrossEntropyCuda, Equals_dense_in_fp64_for_every_chunk_size) {
  for (const std::int64_t chunk_size : {1, 7, 640, 1 << 14, 1 << 20})
    expect_no_worse_than_aten(problem(300, 16, {700, 900}, at::kDouble, {.chunk_size = chunk_size}));
}

// As many chunks as in a training step.
TEST_F(LinearCrossEntropyCuda, Is_as_exact_as_aten_in_five_chunks_of_rows) {
  for (const std::int64_t chunk_size : {128 * 1600, 1 << 20}) {
    expect_no_worse_than_aten(problem(512, 64, {700, 900}, at::kBFloat16, {.chunk_size = chunk_size}));
    expect_no_worse_than_aten(
        problem(512, 64, {700, 900}, at::kBFloat16, {.chunk_size = chunk_size, .gradients_in_forward = true}));
  }
}

TEST_F(LinearCrossEntropyCuda, Keeps_small_probabilities_and_confident_targets) {
  Problem one = problem(64, 32, {3000}, at::kBFloat16, {.gradients_in_forward = true});
  one.hidden = one.hidden * 6;
  one.targets = at::matmul(one.hidden, one.weights[0].t()).argmax(1);
  expect_no_worse_than_aten(one);
}

// The reference value from a row's first block is exceeded by later logits, in all rows or in some.
TEST_F(LinearCrossEntropyCuda, Keeps_rows_whose_greatest_logits_come_late) {
  for (const double scale : {8.0, 60.0}) {
    Problem one = problem(64, 32, {3000, 2000, 5000}, at::kBFloat16, {.gradients_in_forward = true});
    one.weights[1] = one.weights[1] * scale;
    expect_no_worse_than_aten(one);
    one.options.softcap = 100.0;
    expect_no_worse_than_aten(one);
  }
}

TEST_F(LinearCrossEntropyCuda, Reduces_and_shifts_as_dense_does) {
  for (const bool in_forward : {false, true}) {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      const Problem one = problem(100, 24, {300}, at::kDouble, {.reduction = reduction});
      expect_no_worse_than_aten(one);
      Problem rounded = problem(100, 24, {300}, at::kBFloat16, {.reduction = reduction});
      rounded.options.gradients_in_forward = in_forward;
      const auto [outputs, gradients] = run(rounded, linear_cross_entropy, at::kBFloat16);
      const auto [exact_outputs, exact_gradients] = run(rounded, dense, at::kDouble);
      EXPECT_LT(difference(outputs.at("loss"), exact_outputs.at("loss")), 1e-5);
      for (const auto& [name, exact] : exact_gradients)
        EXPECT_LT(difference(gradients.at(name) * 100, exact * 100), 8e-3) << name;
    }
  }
  const at::Tensor hidden = values({2, 50, 24}, 1).to(kGpu, at::kBFloat16),
                   weight = values({70, 24}, 2).to(kGpu, at::kBFloat16);
  const at::Tensor targets = labels({2, 50}, 70, 3).to(kGpu);
  const auto shifted = linear_cross_entropy(hidden, leaf(weight), targets, {.shift = 3, .gradients_in_forward = true});
  const auto aligned = linear_cross_entropy(hidden.narrow(1, 0, 47), weight, targets.narrow(1, 3, 47));
  EXPECT_LT(difference(shifted.loss.narrow(1, 3, 47), aligned.loss), 1e-6);
  EXPECT_EQ(shifted.loss.narrow(1, 0, 3).abs().sum().item<double>(), 0);
}

TEST_F(LinearCrossEntropyCuda, Gives_ignored_rows_and_empty_inputs_nothing) {
  for (const bool in_forward : {false, true}) {
    Problem one = problem(40, 24, {300}, at::kBFloat16, {.z_loss_weight = 1, .gradients_in_forward = in_forward});
    one.targets.fill_(kIgnore);
    const auto [outputs, gradients] = run(one, linear_cross_entropy, at::kBFloat16);
    for (const Results& results : {outputs, gradients})
      for (const auto& [name, tensor] : results) EXPECT_TRUE(at::equal(tensor, at::zeros_like(tensor))) << name;
    const Problem none = problem(0, 24, {300}, at::kBFloat16, {.gradients_in_forward = in_forward});
    const auto [empty_outputs, empty_gradients] = run(none, linear_cross_entropy, at::kBFloat16);
    EXPECT_EQ(empty_gradients.at("weights").abs().sum().item<double>(), 0);
    EXPECT_EQ(empty_gradients.at("hidden").sizes(), (at::IntArrayRef{0, 24}));
  }
}

TEST_F(LinearCrossEntropyCuda, Allows_a_bias_that_masks_whole_blocks_of_the_vocabulary) {
  at::Tensor bias = at::zeros({9000}, at::kDouble);
  bias.narrow(0, 0, 5000).fill_(-std::numeric_limits<double>::infinity());
  for (const bool in_forward : {false, true}) {
    Problem one = problem(40, 24, {4500, 4500}, at::kBFloat16, {.bias = bias, .gradients_in_forward = in_forward});
    one.targets = one.targets.remainder(4000) + 5000;
    expect_no_worse_than_aten(one);
  }
}

TEST_F(LinearCrossEntropyCuda, Takes_strided_inputs) {
  const at::Tensor hidden = values({24, 50}, 1).to(kGpu, at::kBFloat16).t();
  const at::Tensor weight = values({24, 90}, 2).to(kGpu, at::kBFloat16).t();
  const at::Tensor targets = labels({50, 2}, 90, 3).to(kGpu).select(1, 1);
  for (const bool in_forward : {false, true}) {
    const Problem strided{hidden, {weight}, targets, {.gradients_in_forward = in_forward}};
    const Problem packed{hidden.contiguous(), {weight.contiguous()}, targets.contiguous(), strided.options};
    const auto [outputs, gradients] = run(strided, linear_cross_entropy, at::kBFloat16);
    const auto [expected_outputs, expected_gradients] = run(packed, linear_cross_entropy, at::kBFloat16);
    EXPECT_LT(difference(outputs.at("loss"), expected_outputs.at("loss")), 1e-6);
    EXPECT_LT(difference(gradients.at("hidden"), expected_gradients.at("hidden")), 8e-3);
    EXPECT_LT(difference(gradients.at("weights"), expected_gradients.at("weights")), 8e-3);
  }
}

TEST_F(LinearCrossEntropyCuda, Is_bit_equal_from_run_to_run) {
  for (const bool in_forward : {false, true}) {
    for (const bool is_uniform : {true, false}) {
      Problem one = problem(700, 128, {3000, 5000}, at::kBFloat16, {.gradients_in_forward = in_forward});
      one.is_uniform = is_uniform;
      const auto first = run(one, linear_cross_entropy, at::kBFloat16);
      const auto second = run(one, linear_cross_entropy, at::kBFloat16);
      for (const auto& [name, tensor] : first.first) EXPECT_TRUE(at::equal(tensor, second.first.at(name))) << name;
      for (const auto& [name, tensor] : first.second) EXPECT_TRUE(at::equal(tensor, second.second.at(name))) << name;
    }
  }
}

// The second backward can no longer use gradients that the forward computed.
TEST_F(LinearCrossEntropyCuda, Goes_backward_twice) {
  const Problem one = problem(90, 32, {400}, at::kBFloat16, {.gradients_in_forward = true});
  const at::Tensor hidden = leaf(one.hidden), weight = leaf(one.weights[0]);
  const at::Tensor loss = linear_cross_entropy(hidden, weight, one.targets, one.options).loss.sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first = weight.grad().clone();
  weight.mutable_grad() = at::Tensor();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_LT(difference(weight.grad(), first), 8e-3);
  EXPECT_GT(first.abs().max().item<double>(), 0.1);
}

TEST_F(LinearCrossEntropyCuda, Computes_only_the_gradients_asked_for) {
  for (const bool in_forward : {false, true}) {
    const Problem one = problem(30, 32, {100, 50}, at::kBFloat16, {.gradients_in_forward = in_forward});
    const at::Tensor trained = leaf(one.weights[1]);
    const auto output = linear_cross_entropy(one.hidden, {one.weights[0], trained}, one.targets, one.options);
    output.loss.sum().backward();
    EXPECT_TRUE(trained.grad().defined());
    EXPECT_FALSE(one.weights[0].grad().defined());
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(
        linear_cross_entropy(one.hidden, {trained}, one.targets.clamp(0, 49), one.options).loss.requires_grad());
  }
}

TEST_F(LinearCrossEntropyCuda, Marks_rows_that_are_ignored_or_outside_the_vocabulary) {
  const std::int64_t vocabulary = 50;
  for (const std::int64_t size : {0, 1, 31, 32, 33, 511, 512, 513, 1025}) {
    const at::Tensor targets = labels({size, 2}, vocabulary + 20, 9).sub(10).transpose(0, 1);
    for (const std::int64_t ignore_index : {-100, -1, 7, 55}) {
      const at::Tensor is_outside = targets.lt(0).logical_or(targets.ge(vocabulary));
      const at::Tensor expected =
          targets.masked_fill(is_outside, vocabulary).masked_fill(targets.eq(ignore_index), detail::kIgnored);
      const at::Tensor actual = detail::checked_targets_cuda(targets.to(kGpu), ignore_index, vocabulary);
      EXPECT_TRUE(at::equal(actual.cpu(), expected)) << size << " " << ignore_index;
    }
  }
}

TEST_F(LinearCrossEntropyCuda, Gives_nan_for_a_target_outside_the_vocabulary) {
  for (const bool in_forward : {false, true}) {
    Problem one = problem(3, 32, {100}, at::kBFloat16, {.gradients_in_forward = in_forward});
    one.targets = at::tensor({5, 100, -1}, at::kLong).to(kGpu);
    const at::Tensor is_nan = run(one, linear_cross_entropy, at::kBFloat16).first.at("loss").isnan().to(at::kCPU);
    EXPECT_TRUE(at::equal(is_nan, at::tensor({0, 1, 1}, at::kLong).to(at::kBool)));
  }
}

TEST_F(LinearCrossEntropyCuda, Does_not_wait_for_the_device) {
  const Problem one = problem(200, 64, {3000}, at::kBFloat16);
  const at::Tensor hidden = leaf(one.hidden), weight = leaf(one.weights[0]);
  for (const bool in_forward : {false, true}) {
    for (const bool is_uniform : {true, false}) {
      const at::Tensor grad = at::ones({200}, at::TensorOptions(kGpu));
      EXPECT_FALSE(test::waits_for_device([&] {
        const auto output = linear_cross_entropy(hidden, weight, one.targets, {.gradients_in_forward = in_forward});
        backward({is_uniform ? output.loss.sum() : output.loss}, {is_uniform ? at::Tensor() : grad});
      })) << in_forward
          << is_uniform;
    }
  }
}

TEST_F(LinearCrossEntropyCuda, Never_holds_the_logits) {
  constexpr std::int64_t kRows = 8192, kHidden = 1024, kVocabulary = 151936;
  const at::Tensor hidden = leaf(ramp({kRows, kHidden}, 0.37, at::kBFloat16));
  const at::Tensor weight = leaf(ramp({kVocabulary, kHidden}, 0.11, at::kBFloat16) * 0.1);
  const at::Tensor targets = at::arange(kRows, at::TensorOptions(kGpu).dtype(at::kLong)) * 17;
  const std::int64_t gradients = (kRows + kVocabulary) * kHidden * 2;
  for (const bool in_forward : {false, true}) {
    const std::int64_t peak = testing::peak_bytes([&] {
      linear_cross_entropy(hidden, weight, targets, {.gradients_in_forward = in_forward}).loss.sum().backward();
    });
    hidden.mutable_grad() = at::Tensor();
    weight.mutable_grad() = at::Tensor();
    EXPECT_GT(peak, gradients);                                            // the measurement works
    const std::int64_t sums = in_forward ? kVocabulary * kHidden * 2 : 0;  // in fp32, if there are several chunks
    EXPECT_LT(peak - gradients - sums, 0.7 * (1 << 30)) << in_forward;
  }
}

// A chunk with more logits than 32 bits can count.
TEST_F(LinearCrossEntropyCuda, Addresses_more_than_2_31_logits) {
  if (testing::free_bytes() < (std::int64_t{40} << 30)) GTEST_SKIP() << "needs 40 GiB";
  constexpr std::int64_t kRows = 8192, kVocabulary = 300000, kHidden = 8;
  const at::Tensor hidden = leaf(ramp({kRows, kHidden}, 0.37, at::kBFloat16));
  const at::Tensor weight = leaf(ramp({kVocabulary, kHidden}, 0.11, at::kBFloat16));
  const at::Tensor targets = at::arange(kRows, at::TensorOptions(kGpu).dtype(at::kLong)) * 36;
  const auto run_with = [&](std::optional<std::int64_t> chunk_size, bool in_forward) {
    hidden.mutable_grad() = at::Tensor();
    weight.mutable_grad() = at::Tensor();
    const auto output =
        linear_cross_entropy(hidden, weight, targets, {.chunk_size = chunk_size, .gradients_in_forward = in_forward});
    output.loss.sum().backward();
    return std::vector{output.loss.detach(), hidden.grad(), weight.grad()};
  };
  const std::vector<at::Tensor> expected = run_with(std::nullopt, false);
  for (const bool in_forward : {false, true}) {
    const std::vector<at::Tensor> actual = run_with(std::int64_t{1} << 32, in_forward);
    EXPECT_LT(difference(actual[0], expected[0]), 1e-5);
    EXPECT_LT(difference(actual[1], expected[1]), 8e-3);
    EXPECT_LT(difference(actual[2], expected[2]), 8e-3);
  }
}

// Only the last rows have targets.
TEST_F(LinearCrossEntropyCuda, Addresses_more_than_2_31_elements_of_hidden) {
  constexpr std::int64_t kVocabulary = 1000, kHidden = 4096, kLast = 300, kRows = (1 << 19) + kLast;
  const bool fits = testing::fits_into_memory([] {
    const at::Tensor last = ramp({kLast, kHidden}, 0.37, at::kBFloat16);
    const at::Tensor weight = leaf(ramp({kVocabulary, kHidden}, 0.11, at::kBFloat16));
    const at::Tensor targets = at::arange(kLast, at::TensorOptions(kGpu).dtype(at::kLong));
    for (const bool in_forward : {false, true}) {
      const auto of_rows = [&](std::int64_t num_rows) {
        const std::int64_t before = num_rows - kLast;
        const at::Tensor hidden = leaf(at::constant_pad_nd(last, {0, 0, before, 0}, 0.5));
        weight.mutable_grad() = at::Tensor();
        const at::Tensor loss = linear_cross_entropy(hidden, weight, at::constant_pad_nd(targets, {before, 0}, -100),
                                                     {.ignore_index = -100, .gradients_in_forward = in_forward})
                                    .loss;
        loss.sum().backward();
        EXPECT_EQ(hidden.grad().narrow(0, 0, before).abs().sum(at::kFloat).item<float>(), 0);
        return std::vector{loss.detach().narrow(0, before, kLast), hidden.grad().narrow(0, before, kLast).clone(),
                           weight.grad()};
      };
      const std::vector<at::Tensor> expected = of_rows(kLast), actual = of_rows(kRows);
      EXPECT_LT(difference(actual[0], expected[0]), 1e-5) << in_forward;
      EXPECT_LT(difference(actual[1], expected[1]), 8e-3) << in_forward;
      EXPECT_LT(difference(actual[2], expected[2]), 8e-3) << in_forward;
    }
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::linear_cross_entropy_cuda_test
