#include "d9d/optim/muon.h"

#include <limits>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/optim/build_optimizer.h"

#include "tests/optim/copy_state.h"
#include "tests/support/python.h"

namespace d9d::muon_test {
namespace {

using enum ParameterRole;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The parameters of muon_oracle.py.
std::vector<NamedParameter> parameters(at::ScalarType dtype = at::kDouble) {
  std::vector<NamedParameter> result;
  const auto add = [&](const char* name, const std::vector<std::int64_t>& shape, ParameterRole role) {
    const at::Tensor positions = at::arange(c10::multiply_integers(shape), at::kDouble);
    const at::Tensor values = at::sin(positions + 1 + 10 * std::ssize(result)).view(shape);
    result.push_back({.name = name, .tensor = values.to(dtype).requires_grad_(), .role = role});
  };
  add("square", {12, 12}, kLinear);
  add("tall", {20, 7}, kLinear);
  add("flat", {6, 15}, kUnknown);
  add("experts", {3, 5, 8}, kGroupedLinear);
  add("norm", {9}, kNorm);
  add("embedding", {10, 4}, kEmbedding);
  add("head", {4, 10}, kHead);
  add("router", {3, 6}, kRouter);
  return result;
}

at::Tensor gradient(std::int64_t index, const at::Tensor& like, int step) {
  const at::Tensor positions = at::arange(like.numel(), at::kDouble);
  const at::Tensor values = at::cos(positions * positions * 0.37 + 0.61 * step + 10 * index) / (1 + 0.05 * step);
  return values.view(like.sizes()).to(like.scalar_type());
}

void run(Optimizer& optimizer, const std::vector<NamedParameter>& leaves, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    for (std::int64_t i = 0; i < std::ssize(leaves); ++i) {
      const at::Tensor& leaf = leaves[static_cast<std::size_t>(i)].tensor;
      leaf.mutable_grad() = gradient(i, leaf, step);
    }
    optimizer.step(optimizer.learning_rate() * (1 - 0.005 * step));
  }
}

at::Tensor values_of(const std::vector<NamedParameter>& leaves) {
  std::vector<at::Tensor> values;
  for (const NamedParameter& leaf : leaves) values.push_back(leaf.tensor.detach().flatten().to(at::kDouble));
  return at::cat(values);
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

// 25 steps of some 20 products, whose rounding at 1e-16 a Newton-Schulz step of small singular values enlarges.
constexpr int kSteps = 25;
constexpr double kFp64 = 1e-9;
// Of the length of a matrix's step: torch rounds to bfloat16 inside.
constexpr double kOfStep = 0.03;

class MuonOracle : public ::testing::Test {
 protected:
  void expect_equal(const std::vector<MuonConfig>& configs) {
    Json records = Json::array();
    for (const MuonConfig& config : configs) records.push_back(write_record(OptimizerConfig(config)));
    std::istringstream numbers(
        test::run_python("tests/optim/muon_oracle.py", {records.dump(), std::to_string(kSteps)}));
    for (std::size_t i = 0; i < configs.size(); ++i) {
      SCOPED_TRACE(records[i].dump());
      const auto leaves = parameters();
      const std::int64_t num_elements = values_of(leaves).numel();
      const std::int64_t num_of_matrices = values_of({leaves.begin(), leaves.begin() + 4}).numel();
      const at::Tensor exact = read(numbers, num_elements), of_torch = read(numbers, num_of_matrices);
      Optimizer optimizer(Muon(leaves, configs[i]));
      run(optimizer, leaves, 0, kSteps);
      EXPECT_LT(relative_error(values_of(leaves), exact), kFp64);
      for (const auto dtype : {std::optional<Dtype>(), std::optional(Dtype::kBFloat16)}) {
        expect_near_torch(configs[i], dtype, of_torch);
      }
    }
  }

 private:
  static at::Tensor read(std::istream& numbers, std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) EXPECT_TRUE(numbers >> value);
    return at::tensor(values, at::kDouble);
  }

  static void expect_near_torch(MuonConfig config, std::optional<Dtype> products, const at::Tensor& expected) {
    config.products_dtype = products;
    const auto leaves = parameters(at::kFloat);
    const at::Tensor start = values_of(leaves);
    Optimizer optimizer(Muon(leaves, config));
    run(optimizer, leaves, 0, 1);
    std::int64_t begin = 0;
    for (const NamedParameter& leaf : {leaves[0], leaves[1], leaves[2], leaves[3]}) {
      const std::int64_t size = leaf.tensor.numel();
      const at::Tensor ours = leaf.tensor.detach().flatten().to(at::kDouble) - start.narrow(0, begin, size);
      const at::Tensor theirs = expected.narrow(0, begin, size) - start.narrow(0, begin, size);
      EXPECT_LT(((ours - theirs).norm() / theirs.norm()).item<double>(), kOfStep) << leaf.name;
      begin += size;
    }
  }
};

TEST_F(MuonOracle, Is_equalled_over_25_steps_and_torch_within_3_percent_of_a_step) {
  expect_equal({MuonConfig{.lr = 0.05}, MuonConfig{.lr = 0.05, .weight_decay = 0.0, .momentum = 0.8, .nesterov = false},
                MuonConfig{.lr = 0.05, .ns_coefficients = {2.0, -1.5, 0.5}, .eps = 1e-3, .ns_steps = 7},
                MuonConfig{.lr = 0.01,
                           .weight_decay = 0.5,
                           .adjust_lr_fn = AdjustLr::kMatchRmsAdamW,
                           .bucket_size_mb = 0,
                           .adamw = {.lr_factor = 0.5, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.3}}});
}

TEST(Muon, Takes_hidden_matrices_and_leaves_the_rest_to_adamw) {
  const auto has = [&](const char* name) { return ::testing::Contains(::testing::Key(std::string(name))); };
  const auto state = Muon(parameters(), {}).state_dict();
  for (const char* name : {"square", "tall", "flat", "experts"}) {
    EXPECT_THAT(state, has((std::string(name) + ".momentum_buffer").c_str()));
  }
  for (const char* name : {"norm", "embedding", "head", "router"}) {
    EXPECT_THAT(state, has((std::string(name) + ".exp_avg_sq").c_str()));
  }
  EXPECT_EQ(state.size(), 4 + 4 * 3);
}

TEST(Muon, Groups_have_their_own_options_and_rules) {
  const auto leaves = parameters(), others = parameters();
  const MuonConfig plain{.lr = 0.05, .adamw = {.weight_decay = 0.2}};
  MuonConfig config = plain;
  config.decay_all = false;
  config.groups = {
      {.group = {.name = "square", .parameters = "square", .lr_factor = 0.5, .weight_decay = 0.3}, .momentum = 0.5},
      {.group = {.name = "given", .parameters = "tall|norm", .lr_factor = 2.0},
       .betas = std::pair(0.5, 0.6),
       .rule = MuonRule::kAdamW},
      {.group = {.name = "taken", .parameters = "router"}, .rule = MuonRule::kMuon}};
  Optimizer optimizer(Muon(leaves, config));
  run(optimizer, leaves, 0, 5);
  // Each parameter alone, in an optimiser of its own.
  const auto alone = [&](std::size_t index, const OptimizerConfig& own, double lr_factor) {
    const std::vector<NamedParameter> one = {others[index]};
    Optimizer expected = build_optimizer(own, one);
    for (int step = 0; step < 5; ++step) {
      one[0].tensor.mutable_grad() = gradient(static_cast<std::int64_t>(index), one[0].tensor, step);
      expected.step(0.05 * lr_factor * (1 - 0.005 * step));
    }
    EXPECT_TRUE(at::allclose(leaves[index].tensor, one[0].tensor, 1e-12, 1e-14)) << one[0].name;
  };
  alone(0, MuonConfig{.weight_decay = 0.3, .momentum = 0.5}, 0.5);       // square
  alone(1, AdamWConfig{.betas = {0.5, 0.6}, .weight_decay = 0.2}, 2.0);  // tall
  alone(2, plain, 1.0);                                                  // flat
  alone(4, AdamWConfig{.betas = {0.5, 0.6}, .weight_decay = 0.0}, 2.0);  // norm
  alone(5, AdamWConfig{.weight_decay = 0.0}, 1.0);                       // embedding
  alone(6, AdamWConfig{.weight_decay = 0.2}, 1.0);                       // head
  alone(7, MuonConfig{.groups = {{.group = {.name = "router", .parameters = "router"}, .rule = MuonRule::kMuon}}}, 1.0);
  EXPECT_EQ(optimizer.rate_factors().at("given"), 2.0);
}

TEST(Muon, Changes_nothing_at_a_factor_of_nan_and_forgets_the_step) {
  const auto leaves = parameters(), others = parameters();
  Optimizer disturbed(Muon(leaves, {.lr = 0.05})), expected(Muon(others, {.lr = 0.05}));
  run(disturbed, leaves, 0, 2);
  run(expected, others, 0, 2);
  for (const NamedParameter& leaf : leaves) leaf.tensor.grad().fill_(kNaN);
  disturbed.step(0.05, at::full({}, kNaN, at::kDouble));
  disturbed.forget_step();
  EXPECT_TRUE(at::equal(values_of(leaves), values_of(others)));
  run(disturbed, leaves, 2, 4);
  run(expected, others, 2, 4);
  EXPECT_TRUE(at::equal(values_of(leaves), values_of(others)));
}

TEST(Muon, Multiplies_gradients_by_the_scale_as_it_reads_them) {
  const auto leaves = parameters(), others = parameters();
  Optimizer scaled(Muon(leaves, {.lr = 0.05})), expected(Muon(others, {.lr = 0.05}));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor grad = gradient(static_cast<std::int64_t>(i), leaves[i].tensor, 0);
    leaves[i].tensor.mutable_grad() = grad;
    others[i].tensor.mutable_grad() = grad * 0.25;
  }
  scaled.step(0.05, at::full({}, 0.25, at::kDouble));
  expected.step(0.05);
  EXPECT_TRUE(at::equal(values_of(leaves), values_of(others)));
  EXPECT_TRUE(at::equal(scaled.state_dict().at("square.momentum_buffer").local,
                        expected.state_dict().at("square.momentum_buffer").local));
}

TEST(Muon, Leaves_matrices_without_gradient_and_of_zeros_alone) {
  const auto leaves = parameters();
  const at::Tensor start = values_of(leaves);
  Optimizer optimizer(Muon(leaves, {.lr = 0.05, .weight_decay = 0.0}));
  leaves[1].tensor.mutable_grad() = at::zeros_like(leaves[1].tensor.detach());
  optimizer.step(0.05);
  EXPECT_TRUE(at::equal(values_of(leaves), start));
  EXPECT_EQ(optimizer.state_dict().at("square.momentum_buffer").local.abs().max().item<double>(), 0.0);
}

TEST(Muon, Continues_bit_equal_from_state_that_is_filled_in) {
  const auto leaves = parameters(at::kFloat), others = parameters(at::kFloat);
  Optimizer saved(Muon(leaves, {.lr = 0.05})), loaded(Muon(others, {.lr = 0.05}));
  run(saved, leaves, 0, 3);
  test::copy_state(saved, loaded);
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < leaves.size(); ++i) others[i].tensor.copy_(leaves[i].tensor);
  }
  run(saved, leaves, 3, 5);
  run(loaded, others, 3, 5);
  EXPECT_TRUE(at::equal(values_of(leaves), values_of(others)));
}

TEST(Muon, Steps_strided_matrices_as_contiguous_ones) {
  const auto leaves = parameters();
  auto others = parameters();
  for (NamedParameter& other : others) {
    if (other.tensor.dim() != 2) continue;
    const at::Tensor turned = other.tensor.detach().t().clone(at::MemoryFormat::Contiguous);
    other.tensor = turned.t().requires_grad_();
  }
  Optimizer contiguous(Muon(leaves, {.lr = 0.05})), strided(Muon(others, {.lr = 0.05}));
  run(contiguous, leaves, 0, 3);
  run(strided, others, 0, 3);
  EXPECT_TRUE(at::equal(values_of(leaves), values_of(others)));
}

TEST(Muon, Keeps_momentum_of_bf16_matrices_in_fp32_and_rounds_them_to_nearest) {
  const auto narrow = parameters(at::kBFloat16), wide = parameters(at::kFloat);
  Optimizer ours(Muon(narrow, {.lr = 0.05})), expected(Muon(wide, {.lr = 0.05}));
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i].tensor.copy_(narrow[i].tensor);
  }
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const at::Tensor grad = gradient(static_cast<std::int64_t>(i), wide[i].tensor, 0);
    narrow[i].tensor.mutable_grad() = grad.to(at::kBFloat16);
    wide[i].tensor.mutable_grad() = grad.to(at::kBFloat16).to(at::kFloat);
  }
  ours.step(0.05);
  expected.step(0.05);
  EXPECT_EQ(ours.state_dict().at("tall.momentum_buffer").local.scalar_type(), at::kFloat);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    EXPECT_TRUE(at::equal(narrow[i].tensor, wide[i].tensor.to(at::kBFloat16))) << wide[i].name;
  }
}

TEST(Muon, Marks_its_writes_for_autograd) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto leaves = parameters(dtype);
    const at::Tensor loss = (leaves[0].tensor * leaves[0].tensor).sum();
    Optimizer optimizer(Muon(leaves, {.lr = 0.05}));
    run(optimizer, leaves, 0, 1);
    EXPECT_THROW(loss.backward(), c10::Error);
  }
}

TEST(Muon, Refuses_options_and_parameters_that_break_a_rule) {
  const auto build = [](const MuonConfig& config) { return [=] { (void)Muon(parameters(), config); }; };
  EXPECT_NO_THROW(build({})());
  EXPECT_THROW(build({.lr = -1})(), ConfigError);
  EXPECT_THROW(build({.momentum = 1.0})(), ConfigError);
  EXPECT_THROW(build({.ns_coefficients = {1.0, 2.0}})(), ConfigError);
  for (const double eps : {0.0, -1.0, kNaN}) EXPECT_THROW(build({.eps = eps})(), ConfigError);
  EXPECT_THROW(build({.ns_steps = -1})(), ConfigError);
  EXPECT_THROW(build({.bucket_size_mb = -1})(), ConfigError);
  EXPECT_THROW(build({.adamw = {.lr_factor = 0}})(), ConfigError);
  EXPECT_THROW(build({.groups = {{.group = {.name = "all", .parameters = ".*"}, .momentum = 1.0}}})(), ConfigError);
  EXPECT_THROW(build({.products_dtype = Dtype::kFloat16})(), ConfigError);
  EXPECT_THROW(build({.adamw = {.betas = {1.0, 0.9}}})(), ConfigError);
  EXPECT_THROW(build({.adamw = {.eps = -1}})(), ConfigError);
  EXPECT_THROW(build({.groups = {{.group = {.name = "norm", .parameters = "norm"}, .rule = MuonRule::kMuon}}})(),
               ConfigError);
  EXPECT_THROW(Muon(parameters(), {}).step(-0.1), ConfigError);
}

}  // namespace
}  // namespace d9d::muon_test
