// The same operators with the kernels of a GPU, where backward runs on a thread of its own.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/kernels/embedding/embedding.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/split_backward_testing.h"

namespace d9d::kernels::split_backward_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::kGpu;
using ::d9d::testing::leaf;
using ::d9d::testing::split_difference;

using Inputs = std::vector<at::Tensor>;

class SplitBackwardCuda : public ::d9d::testing::CudaTest {};

TEST_F(SplitBackwardCuda, Of_linears_leaves_one_product_a_call) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = device_values({130, 64}, 1, dtype);
    const auto one = [](const Inputs& in) { return Inputs{kernels::linear(in[0], in[1])}; };
    EXPECT_EQ(split_difference(one, {x, device_values({48, 64}, 2, dtype)}, 1), "") << dtype;
    const auto three = [](const Inputs& in) { return linears(in[0], {in[1], in[2], in[3]}); };
    const Inputs weights = device_values({96, 64}, 3, dtype).split_with_sizes({32, 48, 16}, 0);
    EXPECT_EQ(split_difference(three, {x, weights[0], weights[1], weights[2]}, 1), "") << dtype;
  }
}

TEST_F(SplitBackwardCuda, Of_products_that_end_in_an_activation_leaves_one_product) {
  const at::Tensor x = device_values({4096, 4096}, 1, at::kBFloat16);
  const auto op = [](const Inputs& in) { return Inputs{silu_mul_linear(in[0], in[0] * 2, in[1])}; };
  EXPECT_EQ(split_difference(op, {x, device_values({1024, 4096}, 2, at::kBFloat16)}, 1), "");
}

TEST_F(SplitBackwardCuda, Of_grouped_products_leaves_one_product_a_weight) {
  const auto groups = ExpertTokenGroups::from_counts(at::tensor({130, 0, 62}, at::kLong).to(kGpu));
  for (const GroupedMMBackend backend :
       {GroupedMMBackend::kHopper, GroupedMMBackend::kTorch, GroupedMMBackend::kEager}) {
    const auto op = [&](const Inputs& in) { return grouped_mms(in[0], {in[1], in[2]}, groups, backend); };
    const Inputs inputs = {device_values({192, 64}, 1, at::kBFloat16), device_values({3, 64, 96}, 2, at::kBFloat16),
                           device_values({3, 64, 96}, 3, at::kBFloat16)};
    EXPECT_EQ(split_difference(op, inputs, 2), "") << static_cast<int>(backend);
  }
}

TEST_F(SplitBackwardCuda, Of_embeddings_and_heads_is_right) {
  const at::Tensor ids = at::arange(60, at::TensorOptions(kGpu).dtype(at::kLong)).remainder(7);
  const auto embedding = [](const Inputs& in) { return Inputs{embedding_rows(in[1], in[0])}; };
  EXPECT_EQ(split_difference(embedding, {ids, device_values({7, 64}, 1, at::kBFloat16)}, 1), "");
  for (const bool in_forward : {false, true}) {
    const auto head = [&](const Inputs& in) {
      return Inputs{
          linear_cross_entropy(in[0], {in[1]}, ids, {.reduction = Reduction::kSum, .gradients_in_forward = in_forward})
              .loss};
    };
    const Inputs inputs = {device_values({60, 64}, 1, at::kBFloat16), device_values({64, 64}, 2, at::kBFloat16)};
    EXPECT_EQ(split_difference(head, inputs, 0), "") << in_forward;
  }
}

// Products wait for the stream on which backward was called; an operator on another does not wait.
TEST_F(SplitBackwardCuda, Of_an_operator_on_another_stream_leaves_nothing) {
  const at::Tensor x = leaf(device_values({130, 64}, 1, at::kFloat));
  const at::Tensor weight = leaf(device_values({48, 64}, 2, at::kFloat));
  const SideStream side(kGpu);
  DeferredGradients deferred({weight});
  at::Tensor y;
  side.run([&] { y = kernels::linear(x, weight); }).wait();
  const WeightGradients waiting = deferred.keep([&] { y.sum().backward(); });
  EXPECT_EQ(waiting.num_products(), 0);
  const at::Tensor expected = at::ones({48, 130}, x.options()).mm(x.detach());
  EXPECT_LT((weight.grad() - expected).norm().item<double>() / expected.norm().item<double>(), 1e-5);
}

}  // namespace
}  // namespace d9d::kernels::split_backward_cuda_test
