// The random numbers of a GPU must equal those of the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/rng/element_random.h"

#include "tests/support/device.h"
#include "tests/support/gpu_test.h"

namespace d9d::element_random_cuda_test {
namespace {

const ElementWindow kWindow{.global_shape = {70, 50, 40}, .start = {3, 0, 5}};
const std::vector<std::int64_t> kShape = {60, 50, 33};
constexpr RandomStream kStream{.key = 42, .step = 7};

class ElementRandomCuda : public test::GpuTest {};

at::Tensor on(at::Device device, at::ScalarType dtype) { return at::empty(kShape, at::device(device).dtype(dtype)); }

TEST_F(ElementRandomCuda, Draws_the_uniform_numbers_of_the_CPU) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor here = on(at::kCPU, dtype), there = on(at::kCUDA, dtype);
    fill_uniform(here, kWindow, kStream, -0.3, 0.7);
    fill_uniform(there, kWindow, kStream, -0.3, 0.7);
    EXPECT_TRUE(at::equal(there.cpu(), here)) << dtype;
  }
}

TEST_F(ElementRandomCuda, Draws_the_normal_numbers_of_the_CPU_up_to_the_last_bits_of_a_double) {
  const at::Tensor here = on(at::kCPU, at::kDouble), there = on(at::kCUDA, at::kDouble);
  fill_normal(here, kWindow, kStream, 0.5, 2.0);
  fill_normal(there, kWindow, kStream, 0.5, 2.0);
  EXPECT_LT((there.cpu() - here).abs().max().item<double>(), 1e-13);
  const at::Tensor narrow = on(at::kCUDA, at::kBFloat16), expected = on(at::kCPU, at::kBFloat16);
  fill_normal(narrow, kWindow, kStream, 0.5, 2.0);
  fill_normal(expected, kWindow, kStream, 0.5, 2.0);
  EXPECT_LT(narrow.cpu().ne(expected).sum().item<std::int64_t>(), 2);
}

TEST_F(ElementRandomCuda, Draws_the_masks_of_the_CPU) {
  const at::Tensor here = on(at::kCPU, at::kBool), there = on(at::kCUDA, at::kBool);
  fill_bernoulli(here, kWindow, kStream, 0.9);
  fill_bernoulli(there, kWindow, kStream, 0.9);
  EXPECT_TRUE(at::equal(there.cpu(), here));
}

// Some positions of several sequences, as ranks that cut them have.
TEST_F(ElementRandomCuda, Draws_parts_that_are_not_contiguous_without_the_host) {
  const ElementWindow window{.global_shape = {3, 40, 8}, .start = {0, 10, 0}};
  const at::Tensor here = at::zeros({3, 20, 8}, at::kBool), there = here.to(at::kCUDA);
  const auto draw = [&](const at::Tensor& mask) { fill_bernoulli(mask.narrow(1, 5, 10), window, kStream, 0.5); };
  draw(here);
  draw(there);
  EXPECT_TRUE(at::equal(there.cpu(), here));
  EXPECT_FALSE(test::waits_for_device([&] { draw(there); }));
}

}  // namespace
}  // namespace d9d::element_random_cuda_test
