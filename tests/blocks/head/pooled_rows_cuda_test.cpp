#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/head/classification_head.h"

#include "tests/support/device.h"
#include "tests/support/gpu_test.h"

namespace d9d::pooled_rows_cuda_test {
namespace {

class PooledRowsCuda : public test::GpuTest {
 protected:
  // Selects the last token of each of four rows of 32.
  [[nodiscard]] static at::Tensor last_token_mask() {
    return at::arange(32).eq(31).to(at::kLong).expand({4, 32}).contiguous().cuda();
  }
  [[nodiscard]] static at::Tensor hidden_states() {
    return at::sin(at::arange(4 * 32 * 16, at::kFloat)).view({4, 32, 16}).cuda().set_requires_grad(true);
  }
};

TEST_F(PooledRowsCuda, Of_a_known_number_do_not_wait_for_the_device) {
  auto head = make_module<ClassificationHead>(ClassificationHeadConfig{.num_labels = 3, .dropout = 0.1}, 16);
  head->materialize(at::Device(at::kCUDA, 0));
  head->reset_parameters(/*base_seed=*/1);
  const at::Tensor hidden = hidden_states(), mask = last_token_mask();
  EXPECT_FALSE(test::waits_for_device([&] { head(hidden, PoolingShared{mask, 4}).scores.sum().backward(); }));
  EXPECT_TRUE(test::waits_for_device([&] { (void)head(hidden, PoolingShared{mask}); })) << "the test sees no waits";
}

TEST_F(PooledRowsCuda, Are_the_same_where_their_number_is_known) {
  const at::Tensor hidden = hidden_states(), counted = hidden_states(), mask = last_token_mask();
  const at::Tensor rows = pooled_rows(hidden, {mask, 4}).rows, expected = pooled_rows(counted, {mask}).rows;
  EXPECT_TRUE(at::equal(rows, expected));
  rows.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(at::equal(hidden.grad(), counted.grad()));
}

TEST_F(PooledRowsCuda, Are_nan_for_a_mask_that_selects_another_number) {
  for (const std::int64_t number : {3, 5, 200}) {
    const at::Tensor rows = pooled_rows(hidden_states(), {last_token_mask(), number}).rows;
    EXPECT_EQ(rows.size(0), number);
    EXPECT_TRUE(rows.isnan().any().item<bool>()) << number;
  }
}

}  // namespace
}  // namespace d9d::pooled_rows_cuda_test
