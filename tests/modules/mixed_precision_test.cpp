#include "d9d/modules/mixed_precision.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d::mixed_precision_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Net : Module {
  at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }
  const ModulePtr<Linear> up = register_module<Linear>("up", LinearConfig{5, 16, true});
  const ModulePtr<Linear> down = register_module<Linear>("down", LinearConfig{16, 3, true});
};

ModulePtr<Net> make_net(at::ScalarType kept) {
  auto net = make_module<Net>();
  net->to(at::kBFloat16);
  keep_parameters_in(net.shared(), kept);
  net->materialize(at::kCPU);
  net->reset_parameters(7);
  return net;
}

at::Tensor input(int i) { return at::sin(at::arange(20).view({4, 5}) * (0.3 + i)).to(at::kBFloat16); }

TEST(MixedPrecision, Forward_outside_of_a_step_uses_what_is_stored) {
  const auto net = make_net(at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor before = net(input(0));
  for (const auto& [name, parameter] : net->named_parameters()) parameter->stored().mul_(2);
  const at::Tensor after = net(input(0));
  EXPECT_FALSE(at::equal(after, before));
  for (const auto& [name, parameter] : net->named_parameters()) {
    EXPECT_TRUE(at::equal(parameter->local(), parameter->stored().to(at::kBFloat16))) << name;
  }
}

TEST(MixedPrecision, Parameters_are_rounded_for_forwards_of_modules_below_too) {
  const auto net = make_net(at::kFloat);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : net->named_parameters()) parameter->stored().mul_(2);
  EXPECT_FALSE(at::equal(net->up->weight->local(), net->up->weight->stored().to(at::kBFloat16)));
  round_parameters(*net);
  for (const auto& [name, parameter] : net->named_parameters()) {
    EXPECT_TRUE(at::equal(parameter->local(), parameter->stored().to(at::kBFloat16))) << name;
  }
  const auto reduction = gradient_reductions(*net).front();
  reduction->begin_microbatch(/*is_last=*/true);
  net->up->weight->stored().mul_(2);
  round_parameters(*net);
  EXPECT_FALSE(at::equal(net->up->weight->local(), net->up->weight->stored().to(at::kBFloat16))) << "within a step";
  reduction->finish();
}

TEST(MixedPrecision, Several_forwards_outside_of_a_step_may_precede_their_backward) {
  const auto net = make_net(at::kFloat);
  const at::Tensor first = net(input(0)).sum();
  const at::Tensor second = net(input(1)).sum();
  first.backward();
  second.backward();
  const at::Tensor together = net->up->weight->local().grad().clone();
  net->up->weight->local().mutable_grad() = at::Tensor();
  net(input(0)).sum().backward();
  net(input(1)).sum().backward();
  EXPECT_TRUE(at::equal(net->up->weight->local().grad(), together));
}

TEST(MixedPrecision, Small_updates_add_up) {
  const auto net = make_net(at::kFloat);
  const ParameterPtr weight = net->up->weight;
  const at::Tensor start = weight->stored().detach().clone();
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 256; ++i) weight->stored().mul_(1 + 1.0 / 1024);  // each less than half of bfloat16's last bit
  (void)net(input(0));
  EXPECT_TRUE(at::allclose(weight->local().to(at::kFloat), start * std::pow(1 + 1.0 / 1024, 256), 1.0 / 256));
}

TEST(MixedPrecision, Leaves_frozen_parameters_and_equal_dtypes_alone) {
  auto net = make_module<Net>();
  net->to(at::kBFloat16);
  net->up->set_requires_grad(false);
  keep_parameters_in(net.shared(), at::kFloat);
  net->materialize(at::kCPU);
  EXPECT_TRUE(net->up->weight->stored().is_same(net->up->weight->local()));
  EXPECT_EQ(net->down->weight->stored().scalar_type(), at::kFloat);
  EXPECT_EQ(net->down->weight->local().scalar_type(), at::kBFloat16);
  const auto same = make_net(at::kBFloat16);
  EXPECT_TRUE(same->up->weight->stored().is_same(same->up->weight->local()));
}

TEST(MixedPrecision, Refuses_a_dtype_that_is_too_narrow_and_to_come_late) {
  auto net = make_module<Net>();
  EXPECT_THAT([&] { keep_parameters_in(net.shared(), at::kBFloat16); },
              ThrowsMessage<ConfigError>(HasSubstr("holds the values of up.weight (Float), got BFloat16")));
  net->to(at::kBFloat16);
  net->materialize(at::kCPU);
  EXPECT_THAT([&] { keep_parameters_in(net.shared(), at::kFloat); },
              ThrowsMessage<StateError>(HasSubstr("before storage is allocated")));
  const auto kept = make_net(at::kFloat);
  EXPECT_THAT([&] { kept->to(at::kFloat); }, ThrowsMessage<StateError>(HasSubstr("stored in another dtype")));
}

}  // namespace
}  // namespace d9d::mixed_precision_test
