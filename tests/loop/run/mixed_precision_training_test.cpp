// Training with parameters that are stored in another dtype than layers compute in.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "d9d/blocks/linear/linear.h"
#include "d9d/internals/grad_sync/bucketed_reduction.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/optim/adamw.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/tolerances.h"

namespace d9d::mixed_precision_training_test {
namespace {

struct Net : Module {
  Net() { to(at::kBFloat16); }
  at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }
  const ModulePtr<Linear> up = register_module<Linear>("up", LinearConfig{5, 16, true});
  const ModulePtr<Linear> down = register_module<Linear>("down", LinearConfig{16, 3, true});
};

at::Tensor input(int i) { return at::sin(at::arange(20).view({4, 5}) * (0.3 + i)).to(at::kBFloat16); }
at::Tensor loss_of(const at::Tensor& y) { return (y.to(at::kFloat) - 1).square().mean(); }

std::vector<NamedParameter> stored(const Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& [name, parameter] : module.named_parameters()) parameters.push_back({name, parameter->stored()});
  return parameters;
}

// The reference is what a PyTorch program does by hand: float32 leaves, of which forward takes bfloat16 copies.
TEST(MixedPrecisionTraining, Trains_as_torch_does_with_float32_leaves_and_bfloat16_copies) {
  auto net = make_module<Net>();
  keep_parameters_in(net.shared(), at::kFloat);
  net->materialize(at::kCPU);
  net->reset_parameters(7);
  std::vector<at::Tensor> leaves;
  for (const NamedParameter& each : stored(*net)) leaves.push_back(each.tensor.detach().clone().requires_grad_());
  torch::optim::AdamW expected(leaves, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));

  BucketedReduction buckets(net->named_parameters(), {});
  std::vector<std::shared_ptr<GradientReduction>> reductions = gradient_reductions(*net);
  ASSERT_EQ(reductions.size(), 1U);
  AdamW optimizer(stored(*net), {.lr = 1e-2, .weight_decay = 0.1});
  for (int step = 0; step < 5; ++step) {
    expected.zero_grad();
    for (int i = 0; i < 3; ++i) {
      const auto copy = [&](std::size_t index) { return leaves[index].to(at::kBFloat16); };
      const at::Tensor hidden = at::tanh(at::linear(input(i), copy(0), copy(1)));
      const at::Tensor loss = loss_of(at::linear(hidden, copy(2), copy(3)));
      loss.backward();

      reductions.front()->begin_microbatch(i == 2);
      buckets.begin_microbatch(i == 2);
      const at::Tensor own = loss_of(net(input(i)));
      EXPECT_EQ(own.item<float>(), loss.item<float>()) << "step " << step << ", microbatch " << i;
      own.backward();
      reductions.front()->end_microbatch();
      buckets.end_microbatch();
    }
    reductions.front()->finish();
    buckets.finish();
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(at::equal(stored(*net)[i].tensor.grad(), leaves[i].grad())) << stored(*net)[i].name;
    }
    expected.step();
    optimizer.step(1e-2);
    reductions.front()->clear();
    buckets.clear();
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor own = stored(*net)[i].tensor;
    EXPECT_EQ(own.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(own, leaves[i], test::tolerance("fp32").value, 1e-7)) << stored(*net)[i].name;
  }
}

// The toy job in float32 with and without float64 master weights gives the same results up to rounding to float32,
// which proves that each step begins with the values of the last one.
TEST(MixedPrecisionTraining, Is_a_setting_of_any_job) {
  std::vector<std::vector<toy::Batch>> packs;
  for (int step = 0; step < 6; ++step) packs.push_back({toy::samples(8 * step, 4), toy::samples(8 * step + 4, 4)});
  const auto train = [&](at::ScalarType dtype, std::optional<Dtype> master_dtype) {
    toy::Job job(packs);
    for (auto& pack : job.provider.packs) {
      for (toy::Batch& batch : pack) batch.x = batch.x.to(dtype);
    }
    job.provider.make_model = [&] {
      auto model = make_module<toy::Model>();
      model->to(dtype);
      return model;
    };
    job.config.model_stage_factory.master_dtype = master_dtype;
    job.train();
    std::vector<at::Tensor> parameters;
    for (const NamedParameter& each : stored(*job.provider.model)) parameters.push_back(each.tensor.detach().clone());
    return parameters;
  };
  const auto expected = train(at::kDouble, std::nullopt);
  const auto actual = train(at::kFloat, Dtype::kFloat64);
  const auto narrow = train(at::kFloat, std::nullopt);
  bool is_other = false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), at::kDouble);
    EXPECT_EQ(narrow[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(actual[i], expected[i], test::tolerance("fp32").value, 1e-6));
    is_other |= !at::equal(actual[i].to(at::kFloat), narrow[i]);
  }
  EXPECT_TRUE(is_other);
}

TEST(MixedPrecisionTraining, In_a_narrower_dtype_than_the_models_is_refused) {
  toy::Job job({{toy::samples(0, 2)}});
  job.config.model_stage_factory.master_dtype = Dtype::kBFloat16;
  EXPECT_THROW(job.make_trainer(), ConfigError);
}

}  // namespace
}  // namespace d9d::mixed_precision_training_test
