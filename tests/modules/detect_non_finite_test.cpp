#include "d9d/modules/detect_non_finite.h"

#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"

namespace d9d::detect_non_finite_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Logarithm : Module {
  at::Tensor forward(const at::Tensor& x) { return at::log(x); }
};

struct Net : Module {
  at::Tensor forward(const at::Tensor& x) { return down(logarithm(up(x))); }
  const ModulePtr<Linear> up = register_module<Linear>("up", LinearConfig{2, 4, false});
  const ModulePtr<Logarithm> logarithm = register_module<Logarithm>("logarithm");
  const ModulePtr<Linear> down = register_module<Linear>("down", LinearConfig{4, 1, false});
};

ModulePtr<Net> ready_net() {
  auto net = make_module<Net>();
  net->materialize(at::kCPU);
  net->reset_parameters(1);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : net->named_parameters()) parameter->local().fill_(0.5);
  detect_non_finite(*net);
  return net;
}

TEST(DetectNonFinite, Says_nothing_about_finite_values) {
  const auto net = ready_net();
  net(at::ones({3, 2})).sum().backward();
  EXPECT_TRUE(net->up->weight->local().grad().isfinite().all().item<bool>());
}

TEST(DetectNonFinite, Names_the_innermost_module_that_computes_the_first) {
  const auto net = ready_net();
  EXPECT_THAT(
      [&] {
        (void)net(at::full({3, 2}, -1.0));
      },
      ThrowsMessage<StateError>(HasSubstr("in the output of logarithm, whose inputs are finite.")));
}

TEST(DetectNonFinite, Names_parameters_and_inputs_that_are_not_finite) {
  const auto net = ready_net();
  EXPECT_THAT(
      [&] {
        (void)net(at::full({3, 2}, std::numeric_limits<double>::infinity()));
      },
      ThrowsMessage<StateError>(HasSubstr("in the output of up, whose inputs have such values too.")));
  net->down->weight->local().detach()[0][2] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(
      [&] {
        (void)net(at::ones({3, 2}));
      },
      ThrowsMessage<StateError>(HasSubstr("output of down, whose inputs are finite. Its parameters {weight} have")));
}

TEST(DetectNonFinite, Names_the_module_whose_output_gets_such_a_gradient) {
  const auto net = ready_net();
  const at::Tensor loss = at::sqrt(net(at::ones({3, 2})) * 0).sum();  // infinite derivative at 0, times 0
  EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<StateError>(HasSubstr("in the gradient of the output of down")));
}

}  // namespace
}  // namespace d9d::detect_non_finite_test
