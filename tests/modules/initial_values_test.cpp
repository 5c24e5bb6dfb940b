#include "d9d/modules/initial_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"

namespace d9d::initial_values_test {
namespace {

struct Net : Module {
  const ModulePtr<Linear> first = register_module<Linear>("first", LinearConfig{128, 256, true});
  const ModulePtr<Linear> second = register_module<Linear>("second", LinearConfig{256, 128, false});
};

TEST(InitialValues, Are_normal_in_matrices_and_as_before_in_vectors) {
  auto net = make_module<Net>();
  set_normal_init(*net, 0.02);
  net->second->weight->set_init(init::zeros());
  net->materialize(at::kCPU);
  net->reset_parameters(1);
  const at::Tensor weight = net->first->weight->local().detach();
  const double standard_error = 0.02 / std::sqrt(static_cast<double>(weight.numel()));
  EXPECT_NEAR(weight.mean().item<double>(), 0, 5 * standard_error);
  EXPECT_NEAR(weight.std().item<double>(), 0.02, 5 * standard_error);
  EXPECT_NEAR((weight.abs() > 0.04).to(at::kDouble).mean().item<double>(), 0.0455, 0.006);  // beyond two deviations
  EXPECT_LE(net->first->bias->local().abs().max().item<double>(), 1 / std::sqrt(128.0));
  EXPECT_GT(net->first->bias->local().abs().max().item<double>(), 0);
  EXPECT_EQ(net->second->weight->local().abs().max().item<double>(), 0);
}

TEST(InitialValues, Refuse_a_negative_deviation) {
  auto net = make_module<Net>();
  EXPECT_THROW(set_normal_init(*net, -1), ConfigError);
}

}  // namespace
}  // namespace d9d::initial_values_test
