#include "d9d/optim/stochastic_adamw.h"

#include <cmath>
#include <sstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/dtensor/layout.h"
#include "d9d/optim/adamw.h"

#include "tests/core/dtensor/layout_oracle.h"
#include "tests/optim/copy_state.h"
#include "tests/support/python.h"

namespace d9d::stochastic_adamw_test {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kBFloat16};

at::Tensor leaf_of(const at::Tensor& values, at::ScalarType dtype = at::kBFloat16) {
  return values.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
}
void set_grad(const at::Tensor& leaf, const at::Tensor& grad) { leaf.mutable_grad() = grad; }

at::Tensor wave(std::int64_t size, double phase) { return at::cos(at::arange(size, at::kDouble) + phase); }

// Runs stochastic_adamw_oracle.py's case with 4,096 copies: the mean of the copies equals torch's result, while
// rounding to nearest, which loses updates of this size, is far from it.
constexpr std::int64_t kSize = 37;
constexpr std::int64_t kCopies = 4096;
template <class Optimizer>
at::Tensor mean_after_100_steps(const std::function<Optimizer(const at::Tensor&)>& build) {
  const at::Tensor start = at::sin(at::arange(1, kSize + 1, at::kDouble));
  const at::Tensor leaf = leaf_of(start.expand({kCopies, kSize}));
  Optimizer optimizer = build(leaf);
  for (int step = 0; step < 100; ++step) {
    const at::Tensor grad = wave(kSize, 0.05 * step) / (1 + 0.05 * step);
    set_grad(leaf, grad.to(at::kFloat).expand({kCopies, kSize}).contiguous());
    optimizer.step(optimizer.learning_rate());
  }
  return leaf.detach().to(at::kDouble).mean(0);
}

TEST(StochasticAdamW, Equals_torch_optim_in_the_mean) {
  std::istringstream numbers(test::run_python("tests/optim/stochastic_adamw_oracle.py", {}));
  std::vector<double> expected(kSize);
  for (double& value : expected) ASSERT_TRUE(numbers >> value);
  const auto error = [&](const at::Tensor& mean) {
    return (mean - at::tensor(expected, at::kDouble)).abs().max().item<double>();
  };
  for (const Dtype state_dtype : kDtypes) {
    const auto stochastic = mean_after_100_steps<StochasticAdamW>([&](const at::Tensor& leaf) {
      return StochasticAdamW({{"p", leaf}},
                             {.lr = 2e-4, .betas = {0.9, 0.95}, .weight_decay = 0.3, .state_dtype = state_dtype}, 1);
    });
    EXPECT_LT(error(stochastic), 6e-4);  // five standard deviations of the mean; one element's deviation is 7e-3
  }
  const auto nearest = mean_after_100_steps<AdamW>([](const at::Tensor& leaf) {
    return AdamW({{"p", leaf}}, {.lr = 2e-4, .betas = {0.9, 0.95}, .weight_decay = 0.3});
  });
  EXPECT_GT(error(nearest), 5e-3);
}

TEST(StochasticAdamW, Fits_a_line_in_bfloat16) {
  for (const Dtype state_dtype : kDtypes) {
    const at::Tensor w = leaf_of(at::zeros({1}));
    const at::Tensor x = at::linspace(-1, 1, 64);
    StochasticAdamW optimizer({{"w", w}}, {.lr = 0.1, .state_dtype = state_dtype}, 1);
    for (int step = 0; step < 100; ++step) {
      set_grad(w, at::Tensor());
      (x * w.to(at::kFloat) - 2 * x).square().mean().backward();
      optimizer.step(0.1 * (1 - 0.0099 * step));
    }
    EXPECT_LT((x * w.to(at::kFloat) - 2 * x).square().mean().item<double>(), 1e-3);
  }
}

TEST(StochasticAdamW, Steps_wider_parameters_as_AdamW) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor ours = leaf_of(wave(10, 0.3), dtype), expected = leaf_of(wave(10, 0.3), dtype);
    StochasticAdamW optimizer({{"p", ours}}, {.lr = 0.1, .state_dtype = Dtype::kBFloat16}, 1);
    AdamW adamw({{"p", expected}}, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& leaf : {ours, expected}) set_grad(leaf, wave(10, step).to(dtype));
      optimizer.step(0.1);
      adamw.step(0.1);
    }
    EXPECT_TRUE(at::equal(ours, expected));
    EXPECT_EQ(optimizer.state_dict().at("p.exp_avg").local.scalar_type(), dtype);
  }
}

struct Job {
  explicit Job(const at::Tensor& start, Dtype state_dtype = Dtype::kBFloat16, std::uint64_t seed = 3)
      : weight(leaf_of(start)), optimizer({{"w", weight}}, {.lr = 0.01, .state_dtype = state_dtype}, seed) {}
  void step(double phase, at::ScalarType grad_dtype = at::kFloat) {
    set_grad(weight, wave(weight.numel(), phase).to(grad_dtype).view(weight.sizes()));
    optimizer.step(0.01);
  }
  at::Tensor weight;
  StochasticAdamW optimizer;
};

TEST(StochasticAdamW, Continues_bit_equal_from_state_that_is_filled_in_whatever_its_own_seed) {
  for (const Dtype state_dtype : kDtypes) {
    for (const at::ScalarType grad_dtype : {at::kFloat, at::kBFloat16}) {
      Job first(wave(1000, 0.1), state_dtype);
      first.step(0.2, grad_dtype);
      Job second(first.weight, state_dtype, /*seed=*/99);
      test::copy_state(first.optimizer, second.optimizer);
      for (const double phase : {0.3, 0.4}) {
        first.step(phase, grad_dtype);
        second.step(phase, grad_dtype);
      }
      EXPECT_TRUE(at::equal(first.weight, second.weight));
      for (const auto& [name, tensor] : first.optimizer.state_dict())
        EXPECT_TRUE(at::equal(tensor.local, second.optimizer.state_dict().at(name).local)) << name;
    }
  }
}

TEST(StochasticAdamW, Draws_its_bits_from_seed_name_and_step) {
  const auto after_a_step = [](std::uint64_t seed, const std::string& name) {
    const at::Tensor weight = leaf_of(wave(1000, 0.1));
    StochasticAdamW optimizer({{name, weight}}, {.lr = 0.01}, seed);
    set_grad(weight, wave(1000, 0.2));
    optimizer.step(0.01);
    return weight;
  };
  EXPECT_TRUE(at::equal(after_a_step(1, "a"), after_a_step(1, "a")));
  EXPECT_FALSE(at::equal(after_a_step(1, "a"), after_a_step(2, "a")));
  EXPECT_FALSE(at::equal(after_a_step(1, "a"), after_a_step(1, "b")));
}

TEST(StochasticAdamW, Rounds_a_shard_as_the_whole_parameter) {
  const std::vector<std::int64_t> shape = {12, 50};
  const std::vector<Placements> layouts = {{Shard{0}, Shard{1}},
                                           {Shard{1}, FlatShard{.padded_numel = 512, .offset_in_unit = 128}},
                                           {Replicate{}, FlatShard{.padded_numel = 1024, .offset_in_unit = 256}}};
  const at::Tensor start = wave(600, 0.7).view(shape);
  Job whole(start);
  whole.step(0.2);
  whole.step(0.9);
  for (const Placements& placements : layouts) {
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      auto backend = std::make_unique<ThreadBackend>(std::make_shared<ThreadJob>(4), rank);
      const DeviceMesh mesh("m", {{"a", 2}, {"b", 2}}, std::make_shared<World>(std::move(backend)));
      const auto part = [&](const at::Tensor& tensor) { return test::local_of(tensor.detach(), mesh, placements); };
      const at::Tensor shard = leaf_of(part(start.to(at::kBFloat16)));
      StochasticAdamW optimizer({{"w", shard, element_rows(shape, mesh, placements)}},
                                {.lr = 0.01, .state_dtype = Dtype::kBFloat16}, 3);
      for (const double phase : {0.2, 0.9}) {
        set_grad(shard, part(wave(600, phase).to(at::kFloat).view(shape)));
        optimizer.step(0.01);
      }
      EXPECT_TRUE(at::equal(shard, part(whole.weight))) << rank;
    }
  }
}

TEST(StochasticAdamW, Rounds_in_groups_as_it_does_without) {
  const auto after_three_steps = [](const std::vector<BetasGroupConfig>& groups) {
    std::vector<NamedParameter> leaves;
    for (const char* const name : {"a", "b", "c"}) leaves.push_back({name, leaf_of(wave(100, 0.3))});
    StochasticAdamW optimizer(leaves, {.lr = 1e-3, .state_dtype = Dtype::kBFloat16, .groups = groups}, /*seed=*/1);
    for (int step = 0; step < 3; ++step) {
      for (const NamedParameter& leaf : leaves) set_grad(leaf.tensor, wave(100, step).to(at::kBFloat16));
      optimizer.step(1e-3);
    }
    std::vector<at::Tensor> values;
    for (const NamedParameter& leaf : leaves) values.push_back(leaf.tensor.detach());
    return at::cat(values);
  };
  const at::Tensor plain = after_three_steps({});
  EXPECT_TRUE(at::equal(plain, after_three_steps({{.group = {.name = "one", .parameters = "b"}}})));
  const at::Tensor faster = after_three_steps({{.group = {.name = "one", .parameters = "b", .lr_factor = 3.0}}});
  EXPECT_TRUE(at::equal(plain.narrow(0, 0, 100), faster.narrow(0, 0, 100)));
  EXPECT_FALSE(at::equal(plain.narrow(0, 100, 100), faster.narrow(0, 100, 100)));
  EXPECT_TRUE(at::equal(plain.narrow(0, 200, 100), faster.narrow(0, 200, 100)));
}

TEST(StochasticAdamW, Multiplies_gradients_by_the_scale) {
  Job scaled(wave(100, 0.1)), direct(wave(100, 0.1));
  set_grad(scaled.weight, wave(100, 0.2).to(at::kFloat));
  set_grad(direct.weight, wave(100, 0.2).to(at::kFloat) * 0.125);
  scaled.optimizer.step(0.01, at::full({}, 0.125, at::kDouble));
  direct.optimizer.step(0.01);
  EXPECT_TRUE(at::equal(scaled.weight, direct.weight));
}

TEST(StochasticAdamW, Leaves_parameters_without_gradient_alone_and_steps_empty_ones) {
  const at::Tensor idle = leaf_of(at::ones({3})), empty = leaf_of(at::ones({0}));
  StochasticAdamW optimizer({{"idle", idle}, {"empty", empty}}, {.lr = 0.1}, 1);
  set_grad(empty, at::zeros({0}));
  optimizer.step(0.1);
  EXPECT_TRUE(idle.eq(1).all().item<bool>());
  EXPECT_EQ(optimizer.state_dict().at("idle.step").local.item<std::int64_t>(), 0);
  EXPECT_EQ(optimizer.state_dict().at("empty.step").local.item<std::int64_t>(), 1);
}

TEST(StochasticAdamW, Keeps_its_state_in_the_dtype_asked_for) {
  for (const auto& [dtype, expected] :
       {std::pair(Dtype::kFloat32, at::kFloat), std::pair(Dtype::kBFloat16, at::kBFloat16)}) {
    const Job job(at::ones({2}), dtype, 42);
    EXPECT_EQ(job.optimizer.state_dict().at("w.exp_avg").local.scalar_type(), expected);
    EXPECT_EQ(job.optimizer.state_dict().at("w.exp_avg_sq").local.scalar_type(), expected);
    EXPECT_EQ(job.optimizer.state_dict().at("rounding_seed").local.item<std::int64_t>(), 42);
    EXPECT_THAT(job.optimizer.state_dict(), ::testing::SizeIs(4));
  }
}

TEST(StochasticAdamW, Refuses_options_and_parameters_that_break_a_rule) {
  const auto build = [](const StochasticAdamWConfig& config, at::ScalarType dtype = at::kBFloat16) {
    return [=] { StochasticAdamW({{"p", at::ones({2}, dtype)}}, config, 1); };
  };
  EXPECT_NO_THROW(build({})());
  EXPECT_THROW(build({.lr = -1})(), ConfigError);
  EXPECT_THROW(build({.betas = {1, 0.9}})(), ConfigError);
  EXPECT_THROW(build({.eps = -1})(), ConfigError);
  EXPECT_THROW(build({.weight_decay = -1})(), ConfigError);
  EXPECT_THROW(build({.state_dtype = Dtype::kFloat16})(), ConfigError);
  EXPECT_THROW(build({}, at::kHalf)(), ConfigError);
  EXPECT_THROW(build({}, at::kLong)(), ConfigError);
}

}  // namespace
}  // namespace d9d::stochastic_adamw_test
