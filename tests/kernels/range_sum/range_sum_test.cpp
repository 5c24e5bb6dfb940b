#include "d9d/kernels/range_sum/range_sum.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::range_sum_test {
namespace {

// Sums element by element in fp64, of which the result is rounded once.
at::Tensor expected_sum(const at::Tensor& target, const std::vector<PositionRange>& ranges) {
  at::Tensor sum = at::zeros_like(target, at::kDouble), is_covered = at::zeros_like(target, at::kBool);
  for (const PositionRange& each : ranges) {
    sum.narrow(1, each.first_position, each.values.size(1)) += each.values;
    is_covered.narrow(1, each.first_position, each.values.size(1)).fill_(true);
  }
  return at::where(is_covered, sum.to(target.scalar_type()), target);
}

// Ranges of random lengths, of which the first may be the target itself. Values are small whole numbers, whose sums are
// exact. `column` is where heads begin in the rows of a wider buffer.
void expect_sums(at::Device device, at::ScalarType dtype) {
  std::mt19937 draw(3);  // NOLINT: fixed seed
  const auto below = [&](std::int64_t count) {
    return static_cast<std::int64_t>(draw() % static_cast<unsigned>(count));
  };
  for (int i = 0; i < 120; ++i) {
    const std::int64_t batch = 1 + below(3), length = 1 + below(9), heads = 1 + below(3), features = 8 * (1 + below(3));
    const auto tensor_of = [&](std::int64_t count) {
      const std::int64_t column = below(2) * heads;
      return at::randint(-8, 9, {batch, count, 2 * heads, features}, at::TensorOptions(device).dtype(dtype))
          .narrow(2, column, heads);
    };
    const at::Tensor target = tensor_of(length);
    std::vector<PositionRange> ranges;
    if (below(2) == 0) ranges.push_back({.values = target});
    for (std::int64_t left = below(10); left > 0; --left) {
      const std::int64_t first = below(length);
      ranges.push_back({.values = tensor_of(below(length - first + 1)), .first_position = first});
    }
    const at::Tensor expected = expected_sum(target, ranges);
    sum_ranges(target, ranges);
    ASSERT_TRUE(at::equal(target, expected)) << "case " << i << " of " << ranges.size() << " ranges";
  }
}

TEST(SumRanges, Equals_a_sum_in_fp64) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) expect_sums(at::kCPU, dtype);
}

TEST(SumRanges, Rounds_once) {
  const at::Tensor target = at::full({1, 1, 8}, 256, at::kBFloat16), one = at::ones({1, 1, 8}, at::kBFloat16);
  sum_ranges(target, {{.values = target}, {.values = one}, {.values = one}});  // 256 has no neighbour nearer than 2
  EXPECT_EQ(target[0][0][0].item<float>(), 258);
}

TEST(SumRanges, Adds_to_a_wider_dtype) {
  const at::Tensor target = at::full({1, 2, 8}, 256, at::kFloat), one = at::ones({1, 1, 8}, at::kBFloat16);
  sum_ranges(target, {{.values = target}, {.values = one, .first_position = 1}});
  EXPECT_EQ(target.select(1, 0).sum().item<float>(), 8 * 256);
  EXPECT_EQ(target.select(1, 1).sum().item<float>(), 8 * 257);
}

TEST(SumRanges, Refuses_other_sizes) {
  const at::Tensor target = at::zeros({2, 4, 8});
  EXPECT_THROW(sum_ranges(target, {{.values = at::zeros({2, 4, 7})}}), ConfigError);
  EXPECT_THROW(sum_ranges(target, {{.values = at::zeros({2, 4, 8}), .first_position = 1}}), ConfigError);
  EXPECT_THROW(sum_ranges(target, {{.values = at::zeros({2, 1, 8}), .first_position = -1}}), ConfigError);
  EXPECT_THROW(sum_ranges(target, {{.values = at::zeros({2, 1, 8}), .first_position = INT64_MAX}}), ConfigError);
}

class SumRangesCuda : public ::d9d::testing::CudaTest {};

TEST_F(SumRangesCuda, Equals_a_sum_in_fp64) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_sums(::d9d::testing::kGpu, dtype);
  }
}

TEST_F(SumRangesCuda, Copies_bits) {
  const at::Tensor values = at::full({1, 2, 8}, -0.0, at::TensorOptions(::d9d::testing::kGpu).dtype(at::kBFloat16));
  const at::Tensor target = at::ones_like(values);
  sum_ranges(target, {{.values = values}});
  EXPECT_TRUE(at::signbit(target).all().item<bool>());
}

TEST_F(SumRangesCuda, Rounds_once) {
  const auto full = [](double value) {
    return at::full({1, 1, 8}, value, at::TensorOptions(::d9d::testing::kGpu).dtype(at::kBFloat16));
  };
  const at::Tensor target = full(256), one = full(1);
  sum_ranges(target, {{.values = target}, {.values = one}, {.values = one}});
  EXPECT_EQ(target[0][0][0].item<float>(), 258);
}

TEST_F(SumRangesCuda, Addresses_more_than_2_31_elements) {
  constexpr std::int64_t kRows = (1LL << 31) / 4096 + 3;
  const bool fits = ::d9d::testing::fits_into_memory([] {
    const at::Tensor target = at::zeros({1, kRows, 4096}, at::TensorOptions(::d9d::testing::kGpu).dtype(at::kBFloat16));
    const at::Tensor last = at::ones({1, 2, 4096}, target.options());
    sum_ranges(target, {{.values = target}, {.values = last, .first_position = kRows - 2}});
    EXPECT_EQ(target.narrow(1, kRows - 2, 2).to(at::kFloat).sum().item<float>(), 2 * 4096);
    EXPECT_EQ(target.narrow(1, 0, kRows - 2).count_nonzero().item<std::int64_t>(), 0);
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::range_sum_test
