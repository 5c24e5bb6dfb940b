#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Generator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"

#include "tests/support/gpu_test.h"

namespace d9d::test::checkpoint_cuda_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const at::Device kGpu(at::kCUDA, 0);

class CheckpointCuda : public GpuTest {};

at::Tensor leaf() { return at::randn({1, 2, 64, 64}, at::TensorOptions(kGpu).dtype(at::kBFloat16)).requires_grad_(); }

TEST_F(CheckpointCuda, Refuses_a_recomputation_that_draws_other_random_numbers) {
  using Draw = std::function<at::Tensor(const at::Tensor&)>;
  const at::Generator own = at::globalContext().defaultGenerator(kGpu).clone();
  const std::vector<std::pair<std::string, Draw>> draws = {
      {"aten::dropout", [](const at::Tensor& x) { return at::dropout(x, 0.5, /*train=*/true); }},
      {"aten::native_dropout", [](const at::Tensor& x) { return std::get<0>(at::native_dropout(x, 0.5, true)); }},
      {"aten::rand_like", [](const at::Tensor& x) { return x * at::rand_like(x); }},
      {"aten::bernoulli_", [own](const at::Tensor& x) { return x * at::empty_like(x).bernoulli_(0.5, own); }},
      {"aten::randperm", [](const at::Tensor& x) { return x.index_select(2, at::randperm(64, kGpu)); }},
      {"aten::scaled_dot_product_attention",
       [](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x, {}, /*dropout_p=*/0.1); }},
  };
  for (const auto& [name, draw] : draws) {
    SCOPED_TRACE(name);
    const at::Tensor y = checkpoint([&](const at::Tensor& input) { return at::sin(draw(at::sin(input))); }, leaf());
    EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<StateError>(HasSubstr(name)));
  }
}

TEST_F(CheckpointCuda, Gives_the_gradients_of_one_run_where_nothing_is_drawn) {
  const auto body = [](const at::Tensor& input) {
    const at::Tensor attended = at::scaled_dot_product_attention(input, input, input, {}, /*dropout_p=*/0.0);
    return at::sin(at::dropout(attended, 0.5, /*train=*/false));
  };
  const at::Tensor plain = leaf(), x = plain.detach().clone().requires_grad_();
  body(plain).sum().backward();
  checkpoint(body, x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), plain.grad()));
}

}  // namespace
}  // namespace d9d::test::checkpoint_cuda_test
