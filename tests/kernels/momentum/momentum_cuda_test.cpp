#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/kernels/momentum/momentum.h"
#include "d9d/kernels/momentum/momentum_impl.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/momentum/momentum_testing.h"

namespace d9d::kernels::momentum_cuda_test {
namespace {

using ::d9d::testing::cloned;
using ::d9d::testing::converted;
using ::d9d::testing::difference;
using ::d9d::testing::kLionFactors;
using ::d9d::testing::kSgdFactors;
using ::d9d::testing::momentum_tensors;
using ::d9d::testing::MomentumDtypes;

class MomentumKernelCuda : public testing::CudaTest {};

const std::vector<MomentumDtypes> kAll = {
    {at::kFloat, at::kFloat, at::kFloat},    {at::kFloat, at::kBFloat16, at::kFloat},
    {at::kBFloat16, at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16, at::kFloat},
    {at::kFloat, at::kFloat, std::nullopt},  {at::kBFloat16, at::kBFloat16, std::nullopt}};
// Sizes near packs of 4, strides of a block of 1,024 and chunks of 8,192.
const std::vector<std::int64_t> kSizes = {0,    1,    3,    4,    5,     31,    1023,    1024,   1025,
                                          8191, 8192, 8193, 9000, 16384, 16385, 409'006, 100'001};

at::Tensor device_scale(double value) { return at::full({}, value, at::TensorOptions(at::kCUDA).dtype(at::kDouble)); }

std::vector<MomentumTensors> ragged(const MomentumDtypes& dtypes) {
  std::vector<MomentumTensors> tensors;
  for (const std::int64_t size : kSizes) {
    tensors.push_back(converted(momentum_tensors({size}, dtypes, 10 * tensors.size() + 1),
                                [](const at::Tensor& tensor) { return tensor.cuda(); }));
  }
  return tensors;
}

TEST_F(MomentumKernelCuda, Is_as_close_to_fp64_as_ATen_for_many_sizes_at_once) {
  const at::Tensor scale = device_scale(0.7);
  for (const MomentumFactors& factors : {kSgdFactors, kLionFactors}) {
    for (const MomentumDtypes& dtypes : kAll) {
      const std::vector<MomentumTensors> ours = ragged(dtypes);
      std::vector<MomentumTensors> composed, exact;
      for (const MomentumTensors& each : ours) {
        ASSERT_TRUE(detail::has_momentum_kernel(each));
        composed.push_back(cloned(each));
        exact.push_back(converted(each, [](const at::Tensor& tensor) { return tensor.to(at::kDouble); }));
        detail::momentum_aten(composed.back(), factors, scale);
        detail::momentum_aten(exact.back(), factors, scale);
      }
      momentum_(ours, factors, scale);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        if (kSizes[i] == 0) continue;
        constexpr double kFloor = 2e-7;  // one rounding of fp32
        EXPECT_LE(difference(ours[i].parameter, exact[i].parameter),
                  std::max(1.5 * difference(composed[i].parameter, exact[i].parameter), kFloor))
            << kSizes[i];
        if (!ours[i].buffer.defined()) continue;
        EXPECT_LE(difference(ours[i].buffer, exact[i].buffer),
                  std::max(1.5 * difference(composed[i].buffer, exact[i].buffer), kFloor))
            << kSizes[i];
      }
    }
  }
}

TEST_F(MomentumKernelCuda, Changes_nothing_at_a_scale_of_nan) {
  std::vector<MomentumDtypes> all = kAll;
  all.push_back({at::kDouble, at::kDouble, at::kDouble});  // goes through ATen
  for (const MomentumDtypes& dtypes : all) {
    const std::vector<MomentumTensors> ours = ragged(dtypes);
    std::vector<MomentumTensors> before;
    for (const MomentumTensors& each : ours) before.push_back(cloned(each));
    for (const MomentumTensors& each : ours) each.grad.fill_(std::numeric_limits<double>::infinity());
    momentum_(ours, kSgdFactors, device_scale(std::numeric_limits<double>::quiet_NaN()));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::equal(ours[i].parameter, before[i].parameter)) << i;
      if (ours[i].buffer.defined()) {
        EXPECT_TRUE(at::equal(ours[i].buffer, before[i].buffer)) << i;
      }
    }
  }
}

TEST_F(MomentumKernelCuda, Takes_unaligned_tensors_and_keeps_their_neighbours) {
  for (const MomentumDtypes& dtypes : kAll) {
    const MomentumTensors padded =
        converted(momentum_tensors({20'001}, dtypes, 4), [](const at::Tensor& tensor) { return tensor.cuda(); });
    for (const std::int64_t offset : {1, 2, 3, 4, 5}) {
      const auto inner = [&](const at::Tensor& tensor) { return tensor.narrow(0, offset, 19'990); };
      const MomentumTensors aligned =
          converted(padded, [&](const at::Tensor& tensor) { return inner(tensor).clone(); });
      const MomentumTensors outside = cloned(padded);
      momentum_({converted(padded, inner)}, kSgdFactors, device_scale(1.0));
      momentum_({aligned}, kSgdFactors, device_scale(1.0));
      EXPECT_TRUE(at::equal(inner(padded.parameter), aligned.parameter)) << offset;
      if (padded.buffer.defined()) {
        EXPECT_TRUE(at::equal(inner(padded.buffer), aligned.buffer)) << offset;
      }
      EXPECT_TRUE(at::equal(padded.parameter.narrow(0, 0, offset), outside.parameter.narrow(0, 0, offset)));
      EXPECT_TRUE(at::equal(padded.parameter.narrow(0, offset + 19'990, 11 - offset),
                            outside.parameter.narrow(0, offset + 19'990, 11 - offset)));
    }
  }
}

TEST_F(MomentumKernelCuda, Takes_more_tensors_than_a_launch_holds) {
  std::vector<MomentumTensors> many, alone;
  for (std::int64_t i = 0; i < 2000; ++i) {
    many.push_back(converted(momentum_tensors({1 + i * 37 % 3000}, kAll[static_cast<std::size_t>(i % 6)], i),
                             [](const at::Tensor& tensor) { return tensor.cuda(); }));
    alone.push_back(cloned(many.back()));
  }
  momentum_(many, kSgdFactors, device_scale(0.5));
  for (const MomentumTensors& each : alone) momentum_({each}, kSgdFactors, device_scale(0.5));
  for (std::size_t i = 0; i < many.size(); ++i) {
    ASSERT_TRUE(at::equal(many[i].parameter, alone[i].parameter)) << i;
    if (many[i].buffer.defined()) {
      ASSERT_TRUE(at::equal(many[i].buffer, alone[i].buffer)) << i;
    }
  }
}

}  // namespace
}  // namespace d9d::kernels::momentum_cuda_test
