#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/kernels/adamw/adamw.h"
#include "d9d/kernels/adamw/adamw_impl.h"

#include "tests/kernels/adamw/adamw_testing.h"
#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::adamw_cuda_test {
namespace {

using ::d9d::testing::adamw_tensors;
using ::d9d::testing::AdamWDtypes;
using ::d9d::testing::cloned;
using ::d9d::testing::converted;
using ::d9d::testing::difference;
using ::d9d::testing::kAdamOptions;
using ::d9d::testing::kAdamWOptions;

class AdamWKernelCuda : public testing::CudaTest {
 protected:
  void SetUp() override {
    testing::CudaTest::SetUp();
    if (IsSkipped()) return;
    one_ = at::ones({}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
  }

  at::Tensor one_;
};

AdamWTensors on_device(const AdamWTensors& tensors) {
  return converted(tensors, [](const at::Tensor& tensor) { return tensor.cuda(); });
}

const std::vector<AdamWDtypes> kNearest = {{at::kFloat, at::kFloat, at::kFloat},
                                           {at::kFloat, at::kBFloat16, at::kFloat},
                                           {at::kBFloat16, at::kFloat, at::kFloat},
                                           {at::kBFloat16, at::kBFloat16, at::kFloat}};
const std::vector<AdamWDtypes> kRounding = {{at::kBFloat16, at::kFloat, at::kFloat, true},
                                            {at::kBFloat16, at::kBFloat16, at::kFloat, true},
                                            {at::kBFloat16, at::kFloat, at::kBFloat16, true},
                                            {at::kBFloat16, at::kBFloat16, at::kBFloat16, true}};
// Sizes near packs of 4 and 8, warps, strides of a block, and chunks of 8,192 and 16,384.
const std::vector<std::int64_t> kSizes = {0,     1,     3,     4,       5,    7,    8,      9,      31,   32,
                                          33,    63,    1023,  1024,    1025, 2048, 2049,   8191,   8192, 8193,
                                          16383, 16384, 16385, 409'006, 128,  50,   10'240, 100'001};

std::vector<AdamWTensors> ragged(const AdamWDtypes& dtypes) {
  std::vector<AdamWTensors> tensors;
  for (const std::int64_t size : kSizes)
    tensors.push_back(on_device(adamw_tensors({size}, dtypes, 10 * tensors.size() + 1)));
  return tensors;
}

struct Errors {
  double parameter = 0;
  double exp_avg = 0;
  double exp_avg_sq = 0;
};
Errors errors(const AdamWTensors& actual, const AdamWTensors& exact) {
  return {.parameter = difference(actual.parameter, exact.parameter),
          .exp_avg = difference(actual.exp_avg, exact.exp_avg),
          .exp_avg_sq = difference(actual.exp_avg_sq, exact.exp_avg_sq)};
}

TEST_F(AdamWKernelCuda, Is_as_close_to_fp64_as_ATen_for_many_sizes_at_once) {
  const at::Tensor scale = one_ * 0.7;
  for (const AdamWOptions& options : {kAdamWOptions, kAdamOptions}) {
    for (const AdamWDtypes& dtypes : kNearest) {
      const std::vector<AdamWTensors> ours = ragged(dtypes);
      const detail::AdamWFactors factors = detail::adamw_factors(options, 5);
      std::vector<AdamWTensors> composed, exact;
      for (const AdamWTensors& each : ours) {
        ASSERT_TRUE(detail::has_adamw_kernel(each));
        composed.push_back(cloned(each));
        exact.push_back(converted(each, [](const at::Tensor& tensor) { return tensor.to(at::kDouble); }));
        detail::adamw_aten(composed.back(), factors, scale);
        detail::adamw_aten(exact.back(), factors, scale);
      }
      adamw_(ours, options, scale);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        if (kSizes[i] == 0) continue;
        const Errors error = errors(ours[i], exact[i]), allowed = errors(composed[i], exact[i]);
        constexpr double kFloor = 2e-7;  // one rounding of fp32
        EXPECT_LE(error.exp_avg, std::max(1.5 * allowed.exp_avg, kFloor)) << kSizes[i];
        EXPECT_LE(error.exp_avg_sq, std::max(1.5 * allowed.exp_avg_sq, kFloor)) << kSizes[i];
        EXPECT_LE(error.parameter, std::max(1.5 * allowed.parameter, kFloor)) << kSizes[i];
      }
    }
  }
}

TEST_F(AdamWKernelCuda, Changes_nothing_at_a_scale_of_nan) {
  std::vector<AdamWDtypes> all = kNearest;
  all.insert(all.end(), kRounding.begin(), kRounding.end());
  all.push_back({at::kDouble, at::kDouble, at::kDouble});  // goes through ATen
  for (const AdamWDtypes& dtypes : all) {
    const std::vector<AdamWTensors> ours = ragged(dtypes);
    std::vector<AdamWTensors> before;
    for (const AdamWTensors& each : ours) before.push_back(cloned(each));
    for (const AdamWTensors& each : ours) each.grad.fill_(std::numeric_limits<double>::infinity());
    adamw_(ours, kAdamWOptions, one_ * std::numeric_limits<double>::quiet_NaN());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::equal(ours[i].parameter, before[i].parameter)) << i;
      EXPECT_TRUE(at::equal(ours[i].exp_avg, before[i].exp_avg)) << i;
      EXPECT_TRUE(at::equal(ours[i].exp_avg_sq, before[i].exp_avg_sq)) << i;
    }
  }
}

// The values before rounding differ in the last bits of fp32: of 2^16 elements one or two are rounded differently.
TEST_F(AdamWKernelCuda, Rounds_as_the_cpu_does) {
  for (const AdamWDtypes& dtypes : kRounding) {
    std::vector<AdamWTensors> ours = ragged(dtypes), expected;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ours[i].rounding->rows.start = 8 * static_cast<std::int64_t>(i);
      expected.push_back(converted(ours[i], [](const at::Tensor& tensor) { return tensor.cpu(); }));
    }
    adamw_(ours, kAdamWOptions, one_);
    adamw_(expected, kAdamWOptions, at::ones({}, at::kDouble));
    for (std::size_t i = 1; i < ours.size(); ++i) {  // the first tensor is empty
      for (const auto& [on_gpu, b] :
           {std::pair(ours[i].parameter, expected[i].parameter), std::pair(ours[i].exp_avg, expected[i].exp_avg),
            std::pair(ours[i].exp_avg_sq, expected[i].exp_avg_sq)}) {
        const at::Tensor a = on_gpu.cpu();
        if (a.scalar_type() == at::kBFloat16) {
          EXPECT_LE(at::ne(a, b).sum().item<std::int64_t>(), 2 + kSizes[i] / 2000) << kSizes[i];
        } else {
          EXPECT_LE(difference(a, b), 2e-7) << kSizes[i];
        }
        EXPECT_LE(difference(a, b), 1.0 / 128) << kSizes[i];
      }
    }
  }
}

TEST_F(AdamWKernelCuda, Rounds_any_cut_as_the_whole) {
  for (const AdamWDtypes& dtypes : kRounding) {
    const AdamWTensors whole = on_device(adamw_tensors({48, 40}, dtypes, 3));
    const auto part = [&](const auto& cut, const ElementRows& rows) {
      AdamWTensors result = converted(whole, [&](const at::Tensor& tensor) { return cut(tensor).clone(); });
      result.rounding->rows = rows;
      return result;
    };
    const auto columns = [](const at::Tensor& tensor) { return tensor.narrow(1, 16, 24); };
    const auto odd_columns = [](const at::Tensor& tensor) { return tensor.narrow(1, 5, 7); };
    const auto range = [](const at::Tensor& tensor) { return tensor.flatten().narrow(0, 404, 600); };
    const auto odd_range = [](const at::Tensor& tensor) { return tensor.flatten().narrow(0, 403, 600); };
    const std::vector<AdamWTensors> parts = {part(columns, {.start = 16, .row_size = 24, .row_pitch = 40}),
                                             part(odd_columns, {.start = 5, .row_size = 7, .row_pitch = 40}),
                                             part(range, {.start = 404}), part(odd_range, {.start = 403})};
    adamw_(parts, kAdamWOptions, one_);
    adamw_({whole}, kAdamWOptions, one_);
    const auto expect = [&](const AdamWTensors& actual, const auto& cut) {
      EXPECT_TRUE(at::equal(actual.parameter, cut(whole.parameter).contiguous()));
      EXPECT_TRUE(at::equal(actual.exp_avg, cut(whole.exp_avg).contiguous()));
      EXPECT_TRUE(at::equal(actual.exp_avg_sq, cut(whole.exp_avg_sq).contiguous()));
    };
    expect(parts[0], columns);
    expect(parts[1], odd_columns);
    expect(parts[2], range);
    expect(parts[3], odd_range);
  }
}

TEST_F(AdamWKernelCuda, Takes_unaligned_tensors_and_keeps_their_neighbours) {
  std::vector<AdamWDtypes> all = kNearest;
  all.insert(all.end(), kRounding.begin(), kRounding.end());
  for (const AdamWDtypes& dtypes : all) {
    const AdamWTensors padded = on_device(adamw_tensors({20'001}, dtypes, 4));
    const AdamWTensors before = cloned(padded);
    for (const std::int64_t offset : {1, 2, 3, 4, 5}) {
      const auto inner = [&](const at::Tensor& tensor) { return tensor.narrow(0, offset, 19'990); };
      const AdamWTensors aligned = converted(padded, [&](const at::Tensor& tensor) { return inner(tensor).clone(); });
      const AdamWTensors outside = cloned(padded);
      adamw_({converted(padded, inner)}, kAdamWOptions, one_);
      adamw_({aligned}, kAdamWOptions, one_);
      for (const auto& [view, expected, whole, old] :
           {std::tuple(inner(padded.parameter), aligned.parameter, padded.parameter, outside.parameter),
            std::tuple(inner(padded.exp_avg), aligned.exp_avg, padded.exp_avg, outside.exp_avg),
            std::tuple(inner(padded.exp_avg_sq), aligned.exp_avg_sq, padded.exp_avg_sq, outside.exp_avg_sq)}) {
        EXPECT_TRUE(at::equal(view, expected)) << offset;
        EXPECT_TRUE(at::equal(whole.narrow(0, 0, offset), old.narrow(0, 0, offset))) << offset;
        EXPECT_TRUE(
            at::equal(whole.narrow(0, offset + 19'990, 11 - offset), old.narrow(0, offset + 19'990, 11 - offset)));
      }
    }
    EXPECT_TRUE(at::equal(padded.grad, before.grad));
  }
}

TEST_F(AdamWKernelCuda, Takes_more_tensors_than_a_launch_holds_and_steps_that_differ) {
  std::vector<AdamWTensors> many;
  for (std::int64_t i = 0; i < 1000; ++i) {
    many.push_back(on_device(adamw_tensors({1 + i * 37 % 3000}, kRounding[static_cast<std::size_t>(i % 4)], i)));
    many.back().step = 1 + i % 3;
  }
  std::vector<AdamWTensors> alone;
  for (const AdamWTensors& each : many) {
    alone.push_back(cloned(each));
    adamw_({alone.back()}, kAdamWOptions, one_);
  }
  adamw_(many, kAdamWOptions, one_);
  for (std::size_t i = 0; i < many.size(); ++i) {
    ASSERT_TRUE(at::equal(many[i].parameter, alone[i].parameter)) << i;
    ASSERT_TRUE(at::equal(many[i].exp_avg_sq, alone[i].exp_avg_sq)) << i;
  }
}

TEST_F(AdamWKernelCuda, Gives_the_same_bits_again) {
  for (const AdamWDtypes& dtypes : {kNearest[0], kRounding[3]}) {
    const std::vector<AdamWTensors> first = ragged(dtypes), second = ragged(dtypes);
    adamw_(first, kAdamWOptions, one_);
    adamw_(second, kAdamWOptions, one_);
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(at::equal(first[i].parameter, second[i].parameter));
      EXPECT_TRUE(at::equal(first[i].exp_avg, second[i].exp_avg));
      EXPECT_TRUE(at::equal(first[i].exp_avg_sq, second[i].exp_avg_sq));
    }
  }
}

TEST_F(AdamWKernelCuda, Takes_the_scale_from_either_side_and_goes_up_if_asked) {
  AdamWOptions up = kAdamWOptions;
  up.maximize = true;
  const AdamWTensors from_gpu = on_device(adamw_tensors({5000}, kNearest[0], 6));
  const AdamWTensors from_cpu = cloned(from_gpu), negated = cloned(from_gpu), narrow_scale = cloned(from_gpu);
  adamw_({from_gpu}, up, one_ * 0.25);
  adamw_({from_cpu}, up, at::full({}, 0.25, at::kDouble));
  adamw_({narrow_scale}, up, (one_ * 0.25).to(at::kFloat));
  adamw_({negated}, kAdamWOptions, one_ * -0.25);
  for (const AdamWTensors* other : {&from_cpu, &negated, &narrow_scale})
    EXPECT_TRUE(at::equal(from_gpu.parameter, other->parameter));
}

TEST_F(AdamWKernelCuda, Shows_what_is_not_finite) {
  for (const AdamWDtypes& dtypes : {kNearest[0], kRounding[3]}) {
    AdamWTensors tensors = on_device(adamw_tensors({100}, dtypes, 7));
    tensors.grad[17].fill_(std::nan(""));
    adamw_({tensors}, kAdamWOptions, one_);
    for (const at::Tensor& written : {tensors.parameter, tensors.exp_avg, tensors.exp_avg_sq}) {
      EXPECT_EQ(written.isnan().sum().item<std::int64_t>(), 1);
      EXPECT_TRUE(written[17].isnan().item<bool>());
    }
  }
}

TEST_F(AdamWKernelCuda, Leaves_the_rest_to_ATen) {
  AdamWTensors amsgrad = on_device(adamw_tensors({100}, kNearest[0], 8));
  amsgrad.max_exp_avg_sq = amsgrad.exp_avg_sq * 2;
  const AdamWTensors half = on_device(adamw_tensors({100}, {at::kHalf, at::kHalf, at::kFloat}, 8));
  const AdamWTensors wide = on_device(adamw_tensors({100}, {at::kDouble, at::kDouble, at::kDouble}, 8));
  for (const AdamWTensors& each : {amsgrad, half, wide}) {
    const AdamWTensors expected = cloned(each);
    EXPECT_FALSE(detail::has_adamw_kernel(each));
    adamw_({each}, kAdamWOptions, one_);
    detail::adamw_aten(expected, detail::adamw_factors(kAdamWOptions, 5), one_);
    EXPECT_TRUE(at::equal(each.parameter, expected.parameter));
  }
}

TEST_F(AdamWKernelCuda, Addresses_more_elements_than_32_bits_count) {
  constexpr std::int64_t kSize = (std::int64_t{1} << 32) + 1001;
  constexpr std::int64_t kTail = 5000;
  const auto make = [](std::int64_t size, std::int64_t start) {
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
    return AdamWTensors{.parameter = at::full({size}, 1.5, options),
                        .grad = at::full({size}, 0.3, options),
                        .exp_avg = at::full({size}, 0.1, options),
                        .exp_avg_sq = at::full({size}, 0.2, options),
                        .rounding = StochasticRounding{.key = 5, .rows = {.start = start}}};
  };
  AdamWTensors tensors;
  try {
    tensors = make(kSize, 0);
  } catch (const c10::Error&) {
    GTEST_SKIP() << "needs 35 GB of device memory";
  }
  const AdamWTensors tail = make(kTail, kSize - kTail);
  adamw_({tensors}, kAdamWOptions, one_);
  adamw_({tail}, kAdamWOptions, one_);
  EXPECT_TRUE(at::equal(tensors.parameter.narrow(0, kSize - kTail, kTail), tail.parameter));
  EXPECT_TRUE(at::equal(tensors.exp_avg.narrow(0, kSize - kTail, kTail), tail.exp_avg));
}

}  // namespace
}  // namespace d9d::kernels::adamw_cuda_test
