// norm_rotary on a GPU with values passed through: tests where the gradients of queries, keys and values are stored.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/kernels/attention/sdpa.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/norm_rotary/norm_rotary.h"

#include "tests/kernels/common/column_slices_testing.h"
#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::norm_rotary_beside_values_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::leaf;
using ::d9d::testing::same_bits;
using ::d9d::testing::with_room_in_gradient;
using Tensors = std::vector<at::Tensor>;

// Heads of 64 features of a projection.
at::Tensor heads_of(const at::Tensor& projection, std::int64_t first, std::int64_t count) {
  return projection.narrow(-1, first * 64, count * 64).unflatten(-1, {count, 64});
}

// Queries, keys and values of one projection; `use` consumes the values.
class NormRotaryBesideValuesCuda : public ::d9d::testing::CudaTest {
 protected:
  static constexpr std::int64_t kRoom = 9 * 64;  // of queries and keys
  using Use = std::function<at::Tensor(const at::Tensor& v)>;

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    table_ = device_values({2, 37, 64}, 3, at::kBFloat16);
    weights_ = {leaf(device_values({64}, 4, at::kBFloat16)), leaf(device_values({64}, 5, at::kBFloat16))};
    const at::Tensor qkv = device_values({2, 37, 12 * 64}, 1, at::kBFloat16);
    parts_ = {heads_of(qkv, 0, 6).requires_grad_(), heads_of(qkv, 6, 3).requires_grad_(),
              heads_of(qkv, 9, 3).requires_grad_()};
    for (std::size_t i = 0; i < 3; ++i) grads_.push_back(device_values(parts_[i].sizes(), 6 + i, at::kBFloat16));
  }

  // The gradients of queries, keys, weights, and values.
  [[nodiscard]] Tensors gradients(const Use& use) const {
    const auto [q, k, v] = norm_rotary(parts_[0], parts_[1], parts_[2], weights_[0], weights_[1], table_, table_, {});
    EXPECT_TRUE(same_bits({v}, {parts_[2]}));
    EXPECT_TRUE(v.is_alias_of(parts_[2]));
    return torch::autograd::grad({q, k, use(v)}, wanted(), grads_);
  }

  // The same, with norm_rotary of queries and keys only.
  [[nodiscard]] Tensors expected() const {
    const auto [q, k] = norm_rotary(parts_[0], parts_[1], weights_[0], weights_[1], table_, table_, {});
    return torch::autograd::grad({q, k, parts_[2].clone()}, wanted(), grads_);
  }

  [[nodiscard]] Tensors wanted() const { return {parts_[0], parts_[1], weights_[0], weights_[1], parts_[2]}; }

  void expect_apart(const char* name, const Tensors& actual) const {
    EXPECT_TRUE(same_bits(actual, expected())) << name;
    EXPECT_TRUE(detail::are_adjacent_columns(actual[0], actual[1], 2)) << name;
    EXPECT_FALSE(actual[1].is_alias_of(actual[4])) << name;
  }

  at::Tensor table_;
  Tensors weights_, parts_, grads_;
};

TEST_F(NormRotaryBesideValuesCuda, Puts_gradients_beside_that_of_values) {
  for (const std::int64_t room : {kRoom, kRoom + 128}) {
    const Tensors actual = gradients([&](const at::Tensor& v) { return with_room_in_gradient(v, room, 2); });
    EXPECT_TRUE(same_bits(actual, expected()));
    EXPECT_TRUE(detail::are_adjacent_columns(actual[0], actual[1], 2));
    EXPECT_TRUE(detail::are_adjacent_columns(actual[1], actual[4], 2));
    EXPECT_EQ(actual[0].stride(1), room + 3 * 64);
  }
}

TEST_F(NormRotaryBesideValuesCuda, Leaves_that_of_values_alone_without_room) {
  const auto with_room = [](const at::Tensor& v) { return with_room_in_gradient(v, kRoom, 2); };
  expect_apart("contiguous", gradients([](const at::Tensor& v) { return v.clone(); }));
  expect_apart("too little room",
               gradients([](const at::Tensor& v) { return with_room_in_gradient(v, kRoom - 64, 2); }));
  expect_apart("not aligned", gradients([](const at::Tensor& v) { return with_room_in_gradient(v, kRoom + 1, 2); }));
  expect_apart("used twice", gradients([&](const at::Tensor& v) { return (with_room(v) + with_room(v)).mul(0.5); }));
}

TEST_F(NormRotaryBesideValuesCuda, Does_not_write_where_somebody_else_may_read) {
  const auto with_room = [](const at::Tensor& v) { return with_room_in_gradient(v, kRoom, 2); };
  at::Tensor seen;
  expect_apart("seen by a hook", gradients([&](const at::Tensor& v) {
                 v.register_hook([&](const at::Tensor& grad) { seen = grad; });
                 return with_room(v);
               }));
  EXPECT_TRUE(same_bits({seen}, {grads_[2]}));
  at::Tensor buffer;
  expect_apart("kept", gradients([&](const at::Tensor& v) { return with_room_in_gradient(v, kRoom, 2, &buffer); }));
  const at::Tensor room = buffer.view({2 * 37, 12 * 64}).narrow(1, 0, kRoom);
  EXPECT_TRUE(at::equal(room, at::full_like(room, 7)));
}

TEST_F(NormRotaryBesideValuesCuda, Takes_some_of_the_gradients) {
  const auto [q, k, v] = norm_rotary(parts_[0], parts_[1], parts_[2], weights_[0], weights_[1], table_, table_, {});
  const at::Tensor used = with_room_in_gradient(v, kRoom, 2);
  const Tensors all = expected();
  const auto of = [&](const Tensors& outputs, const Tensors& grads) {
    return torch::autograd::grad(outputs, wanted(), grads, /*retain_graph=*/true, /*create_graph=*/false,
                                 /*allow_unused=*/true);
  };
  const Tensors without_values = of({q, k}, {grads_[0], grads_[1]});
  EXPECT_FALSE(without_values[4].defined());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits({without_values[i]}, {all[i]})) << i;
  const Tensors of_values = of({used}, {grads_[2]});
  EXPECT_FALSE(of_values[0].defined() || of_values[1].defined() || of_values[2].defined() || of_values[3].defined());
  EXPECT_TRUE(same_bits({of_values[4]}, {all[4]}));
  const Tensors of_queries_and_values = of({q, used}, {grads_[0], grads_[2]});
  EXPECT_FALSE(of_queries_and_values[1].defined());
  EXPECT_TRUE(same_bits({of_queries_and_values[0], of_queries_and_values[4]}, {all[0], all[4]}));
}

TEST_F(NormRotaryBesideValuesCuda, Leaves_values_out_of_autograd_that_need_no_gradient_or_lie_elsewhere) {
  const at::Tensor constant = parts_[2].detach(), elsewhere = leaf(parts_[2].contiguous());
  for (const at::Tensor& v : {constant, elsewhere}) {
    const auto [q, k, same] = norm_rotary(parts_[0], parts_[1], v, weights_[0], weights_[1], table_, table_, {});
    EXPECT_TRUE(same.is_same(v));
  }
}

// As in attention: the linears' backward sees the gradients of all three as parts of one buffer.
TEST_F(NormRotaryBesideValuesCuda, Gives_the_projection_before_attention_one_gradient) {
  const at::Tensor x = leaf(device_values({2, 256, 512}, 1, at::kBFloat16));
  const at::Tensor weight = device_values({12 * 64, 512}, 2, at::kBFloat16);
  const at::Tensor table = device_values({1, 256, 64}, 3, at::kBFloat16);
  Tensors grads(3);
  const auto projected =
      linears(x, {weight.narrow(0, 0, 6 * 64).requires_grad_(), weight.narrow(0, 6 * 64, 3 * 64).requires_grad_(),
                  weight.narrow(0, 9 * 64, 3 * 64).requires_grad_()});
  for (std::size_t i = 0; i < 3; ++i)
    projected[i].register_hook([&grads, i](const at::Tensor& grad) { grads[i] = grad; });
  const auto heads = [&](std::size_t i) { return projected[i].unflatten(-1, {-1, 64}); };
  const auto [q, k, v] = norm_rotary(heads(0), heads(1), heads(2), weights_[0], weights_[1], table, table, {});
  const at::Tensor out =
      fused_attention({.query = q, .key = k, .value = v}, {.causal = true}, FusedSdpaKernel::kCudnn).out;
  ::d9d::testing::backward({out}, {at::ones_like(out)});
  EXPECT_TRUE(detail::are_adjacent_columns(grads[0], grads[1], 1));
  EXPECT_TRUE(detail::are_adjacent_columns(grads[1], grads[2], 1));
  EXPECT_EQ(grads[0].stride(1), 12 * 64);
}

}  // namespace
}  // namespace d9d::kernels::norm_rotary_beside_values_cuda_test
