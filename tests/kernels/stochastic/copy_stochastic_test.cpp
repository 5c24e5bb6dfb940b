#include "d9d/kernels/stochastic/copy_stochastic.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/stochastic/copy_stochastic_impl.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/op_testing.h"

namespace d9d::kernels::copy_stochastic_test {
namespace {

using ::d9d::testing::values;

at::Tensor rounded(const at::Tensor& source, RandomStream stream, const ElementRows& rows = {}) {
  at::Tensor target = at::full(source.sizes(), -7, source.options().dtype(at::kBFloat16));
  copy_fp32_to_bf16_stochastic_(target, source, stream, rows);
  return target;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.contiguous().view(at::kShort).cpu(), b.contiguous().view(at::kShort).cpu());
}

// "U" if 1.00234375 was rounded up to the bfloat16 above, "D" if it was rounded down to 1.
std::string directions(const at::Tensor& result) {
  std::string text;
  for (std::int64_t i = 0; i < result.numel(); ++i) text += result[i].item<float>() > 1 ? 'U' : 'D';
  return text;
}

at::Tensor from_bits(std::vector<std::int64_t> bits) {
  return at::tensor(bits, at::kLong).to(at::kInt).view(at::kFloat);
}

// The bits are 3f804ccd: rounds up if and only if the noise is at least b333. The words of the first block are 6627e8d5
// e169c58d bc57ac4c 9b00dbd8; the first words of the first eight blocks of seed 0 are 6627e8d5 f8e4cca4 04faa329
// c990ef29 and so on.
TEST(CopyStochastic, Takes_sixteen_bits_an_element_from_the_published_words) {
  const at::Tensor source = at::full({64}, 1.00234375F);
  const at::Tensor of_zero = rounded(source, {.key = 0});
  EXPECT_EQ(directions(of_zero.narrow(0, 0, 8)), "UDUUDUUD");
  EXPECT_EQ(directions(of_zero.view({8, 8}).select(1, 0)), "UUDUUDDD");
  EXPECT_EQ(directions(rounded(source, {.key = 123456789}).view({8, 8}).select(1, 0)), "UDUDDDUU");
}

TEST(CopyStochastic, Keeps_the_mean) {
  constexpr double kUlp = 1.0 / 128;
  for (const double fraction : {0.3, 0.75}) {
    const at::Tensor source = at::full({1 << 21}, 1 + fraction * kUlp, at::kFloat);
    for (const double sign : {1.0, -1.0}) {
      const at::Tensor result = rounded(source * sign, {.key = 3, .step = 5}).to(at::kDouble) * sign;
      EXPECT_NEAR((result.mean().item<double>() - 1) / kUlp, fraction, 2e-3);  // six standard deviations
      EXPECT_EQ(result.min().item<double>(), 1);
      EXPECT_EQ(result.max().item<double>(), 1 + kUlp);
    }
  }
}

TEST(CopyStochastic, Leaves_what_bfloat16_has) {
  const at::Tensor exact = values({1000}, 1, at::kBFloat16);
  for (std::uint64_t step = 0; step < 8; ++step)
    EXPECT_TRUE(same_bits(rounded(exact.to(at::kFloat), {9, step}), exact));
  const at::Tensor special = from_bits({0x7f800000, 0xff800000, 0x00000000, 0x80000000});
  const at::Tensor result = rounded(special, {.key = 1});
  EXPECT_TRUE(same_bits(result, special.to(at::kBFloat16)));
}

TEST(CopyStochastic, Keeps_NaN_whatever_its_bits) {
  for (const std::int64_t bits : {0x7fffffff, 0x7fc00000, 0x7f800001, 0x7fbfffff})
    for (const std::int64_t sign : {std::int64_t{0}, std::int64_t{0x80000000}})
      EXPECT_TRUE(rounded(from_bits({bits | sign}).expand({64}), {.key = 4}).isnan().all().item<bool>()) << bits;
}

TEST(CopyStochastic, Ends_beyond_the_largest_value_at_infinity) {
  const at::Tensor result = rounded(from_bits({0x7f7fffff}).expand({64}), {.key = 4}).to(at::kFloat);
  EXPECT_TRUE(result.isposinf().any().item<bool>());
  EXPECT_FALSE(result.isnan().any().item<bool>());
}

TEST(CopyStochastic, Is_decided_by_key_step_and_element) {
  const at::Tensor source = values({2048, 33}, 2, at::kFloat);
  const at::Tensor result = rounded(source, {.key = 1, .step = 2});
  EXPECT_TRUE(same_bits(result, rounded(source, {.key = 1, .step = 2})));
  EXPECT_FALSE(same_bits(result, rounded(source, {.key = 2, .step = 2})));
  EXPECT_FALSE(same_bits(result, rounded(source, {.key = 1, .step = 3})));
}

struct Part {
  at::Tensor tensor;  // of [48, 40]
  ElementRows rows;
};
std::vector<Part> parts_of(const at::Tensor& whole) {
  const at::Tensor flat = whole.flatten();
  const at::Tensor columns = whole.narrow(1, 16, 24).contiguous();
  const at::Tensor odd_columns = whole.narrow(1, 5, 7).contiguous();
  return {{flat.narrow(0, 800, 400), {.start = 800}},
          {flat.narrow(0, 803, 401), {.begin = 3, .start = 800}},
          {flat.narrow(0, 804, 400), {.start = 804}},
          {columns, {.start = 16, .row_size = 24, .row_pitch = 40}},
          {columns.flatten().narrow(0, 48, 80), {.begin = 48, .start = 16, .row_size = 24, .row_pitch = 40}},
          {columns.flatten().narrow(0, 51, 80), {.begin = 51, .start = 16, .row_size = 24, .row_pitch = 40}},
          {odd_columns, {.start = 5, .row_size = 7, .row_pitch = 40}}};
}

TEST(CopyStochastic, Does_not_depend_on_how_the_tensor_is_cut) {
  const at::Tensor source = values({48, 40}, 3, at::kFloat);
  const std::vector<Part> parts = parts_of(source);
  const std::vector<Part> expected = parts_of(rounded(source, {.key = 5, .step = 6}));
  for (std::size_t i = 0; i < parts.size(); ++i)
    EXPECT_TRUE(same_bits(rounded(parts[i].tensor, {.key = 5, .step = 6}, parts[i].rows), expected[i].tensor)) << i;
}

TEST(CopyStochastic, Equals_its_composition_of_ATen_operators) {
  for (const std::int64_t size : {1, 7, 8, 9, 1003}) {
    at::Tensor source = values({size}, 4, at::kFloat);
    source[size / 2] = std::nan("");
    at::Tensor composed = at::empty({size}, at::kBFloat16);
    detail::copy_stochastic_aten({.target = composed, .source = source, .stream = {7, 8}, .rows = {.start = 3}});
    EXPECT_TRUE(same_bits(composed, rounded(source, {7, 8}, {.start = 3})));
  }
}

TEST(CopyStochastic, Reads_strided_sources_and_empty_ones) {
  const at::Tensor source = values({6, 5}, 5, at::kFloat);
  EXPECT_TRUE(same_bits(rounded(source.t(), {.key = 1}), rounded(source.t().contiguous(), {.key = 1})));
  EXPECT_EQ(rounded(at::empty({0, 4}), {.key = 1}).numel(), 0);
}

TEST(CopyStochastic, Refuses_what_does_not_fit) {
  const at::Tensor source = at::zeros({4, 2});
  const auto copy_into = [&](const at::Tensor& target) { copy_fp32_to_bf16_stochastic_(target, source, {}); };
  EXPECT_THROW(copy_into(at::zeros({2, 4}, at::kBFloat16)), ConfigError);
  EXPECT_THROW(copy_into(at::zeros({2, 4}, at::kBFloat16).t()), ConfigError);
  EXPECT_THROW(copy_into(at::zeros({4, 2})), ConfigError);
  EXPECT_THROW(copy_fp32_to_bf16_stochastic_(at::zeros({4}, at::kBFloat16), at::zeros({4}, at::kDouble), {}),
               ConfigError);
}

class CopyStochasticCuda : public testing::CudaTest {};

TEST_F(CopyStochasticCuda, Gives_the_bits_of_the_cpu) {
  for (const std::int64_t size : {1, 7, 8, 9, 31, 32, 33, 255, 2047, 2048, 2049, 100'003}) {
    at::Tensor source = values({size}, 6, at::kFloat);
    source[size / 3] = from_bits({0x7fffffff})[0];
    EXPECT_TRUE(same_bits(rounded(source.cuda(), {11, 12}), rounded(source, {11, 12}))) << size;
  }
  EXPECT_EQ(rounded(at::empty({0}, at::kCUDA), {11, 12}).numel(), 0);
}

TEST_F(CopyStochasticCuda, Gives_the_bits_of_the_cpu_for_any_cut) {
  const std::vector<Part> parts = parts_of(values({48, 40}, 3, at::kFloat));
  for (const Part& part : parts)
    EXPECT_TRUE(same_bits(rounded(part.tensor.cuda(), {5, 6}, part.rows), rounded(part.tensor, {5, 6}, part.rows)));
}

TEST_F(CopyStochasticCuda, Takes_unaligned_tensors_and_keeps_their_neighbours) {
  const at::Tensor source = values({1003}, 7, at::kFloat);
  for (const std::int64_t offset : {1, 2, 3, 7}) {
    const at::Tensor on_gpu = source.cuda().narrow(0, offset, 900);
    const at::Tensor target = at::full({1003}, -7, on_gpu.options().dtype(at::kBFloat16));
    copy_fp32_to_bf16_stochastic_(target.narrow(0, offset, 900), on_gpu, {1, 2});
    EXPECT_TRUE(same_bits(target.narrow(0, offset, 900), rounded(source.narrow(0, offset, 900), {1, 2})));
    EXPECT_TRUE(target.narrow(0, 0, offset).eq(-7).all().item<bool>());
    EXPECT_TRUE(target.narrow(0, offset + 900, 103 - offset).eq(-7).all().item<bool>());
  }
}

TEST_F(CopyStochasticCuda, Addresses_more_elements_than_32_bits_count) {
  constexpr std::int64_t kSize = (std::int64_t{1} << 32) + 1001;
  constexpr std::int64_t kTail = 3000;
  at::Tensor source, target;
  try {
    source = at::full({kSize}, 1.003F, at::kCUDA);
    target = at::zeros({kSize}, source.options().dtype(at::kBFloat16));
  } catch (const c10::Error&) {
    GTEST_SKIP() << "needs 26 GB of device memory";
  }
  copy_fp32_to_bf16_stochastic_(target, source, {1, 2});
  const at::Tensor expected = rounded(at::full({kTail}, 1.003F), {1, 2}, {.start = kSize - kTail});
  EXPECT_TRUE(same_bits(target.narrow(0, kSize - kTail, kTail), expected));
}

}  // namespace
}  // namespace d9d::kernels::copy_stochastic_test
