#include <cmath>
#include <numeric>
#include <thread>

#include <ATen/ATen.h>

#include "d9d/kernels/device/tile_order.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"
#include "d9d/kernels/grouped_mm/grouped_mm_impl.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/support/device.h"

namespace d9d::kernels::grouped_mm_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::kGpu;
using ::d9d::testing::leaf;

class GroupedMMCuda : public ::d9d::testing::CudaTest {};

using Counts = std::vector<std::int64_t>;

std::int64_t sum_of(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

ExpertTokenGroups groups_of(const Counts& counts) {
  return ExpertTokenGroups::from_counts(at::tensor(counts, at::kLong).to(kGpu));
}

// A reference in operators that autograd differentiates.
at::Tensor loop_of_products(const at::Tensor& x, const at::Tensor& w, const Counts& counts) {
  std::vector<at::Tensor> parts;
  std::int64_t row = 0;
  for (std::size_t g = 0; g < counts.size(); row += counts[g++])
    parts.push_back(at::matmul(x.narrow(0, row, counts[g]), w[static_cast<std::int64_t>(g)]));
  return at::cat(parts);
}

std::string worse_than_loop(const Counts& counts, std::int64_t in, std::int64_t out) {
  const auto groups = groups_of(counts);
  const auto num_groups = static_cast<std::int64_t>(counts.size());
  const auto ours = [&](const auto& inputs) {
    return std::vector{grouped_mm(inputs[0], inputs[1], groups, GroupedMMBackend::kHopper)};
  };
  const auto loop = [&](const auto& inputs) { return std::vector{loop_of_products(inputs[0], inputs[1], counts)}; };
  return testing::worse_than_composition(
      ours, loop,
      {device_values({sum_of(counts), in}, 1, at::kBFloat16), device_values({num_groups, in, out}, 2, at::kBFloat16)});
}

// Group sizes near all edges of tiles, boxes and steps of the tensor cores.
const Counts kEdges = {0,   1,   7,   8,   9,   15,  16,  17,  31,  32,  33,  63,  64,  65,
                       95,  96,  97,  0,   127, 128, 129, 159, 160, 161, 191, 192, 193, 223,
                       224, 225, 255, 256, 257, 300, 511, 512, 513, 600, 767, 768, 769, 0};

TEST_F(GroupedMMCuda, Errs_no_more_than_a_loop_at_every_edge_of_rows) {
  EXPECT_EQ(worse_than_loop(kEdges, 136, 264), "");
  for (const auto count : kEdges) EXPECT_EQ(worse_than_loop({count, 3, count}, 128, 256), "") << count;
}

TEST_F(GroupedMMCuda, Errs_no_more_than_a_loop_at_every_edge_of_features) {
  for (const std::int64_t in : {1, 7, 8, 63, 64, 65, 120, 128, 136, 255, 256, 264, 520})
    for (const std::int64_t out : {1, 8, 17, 64, 72, 128, 136, 192, 256, 260, 512, 768})
      EXPECT_EQ(worse_than_loop({40, 0, 129, 3}, in, out), "") << in << " to " << out;
}

TEST_F(GroupedMMCuda, Errs_no_more_than_a_loop_for_many_stages_and_tiles) {
  EXPECT_EQ(worse_than_loop({700, 20, 0, 1500, 333}, 2048, 1536), "");
  EXPECT_EQ(worse_than_loop({700, 20, 0, 1500, 333}, 768, 2048), "");
  EXPECT_EQ(worse_than_loop({20000}, 256, 512), "");
  Counts many(detail::persistent_gemm::kMaxGroups, 5);
  many[17] = 900;
  EXPECT_EQ(worse_than_loop(many, 64, 256), "");
}

// The gradient of one x through two weights is a single sum, which is rounded once.
TEST_F(GroupedMMCuda, Of_two_weights_errs_no_more_than_two_loops) {
  const auto worse = [](const Counts& counts, std::int64_t in, std::int64_t out) {
    const auto groups = groups_of(counts);
    const auto num_groups = static_cast<std::int64_t>(counts.size());
    return testing::worse_than_composition(
        [&](const auto& inputs) {
          return grouped_mms(inputs[0], {inputs[1], inputs[2]}, groups, GroupedMMBackend::kHopper);
        },
        [&](const auto& inputs) {
          return std::vector{loop_of_products(inputs[0], inputs[1], counts),
                             loop_of_products(inputs[0], inputs[2], counts)};
        },
        {device_values({sum_of(counts), in}, 1, at::kBFloat16), device_values({num_groups, in, out}, 2, at::kBFloat16),
         device_values({num_groups, in, out}, 3, at::kBFloat16)});
  };
  EXPECT_EQ(worse(kEdges, 136, 264), "");
  for (const std::int64_t in : {1, 64, 65, 136, 264})
    for (const std::int64_t out : {1, 8, 63, 64, 72, 128, 260}) EXPECT_EQ(worse({40, 0, 129, 3}, in, out), "");
  EXPECT_EQ(worse({700, 20, 0, 1500, 333}, 2048, 768), "");
}

TEST_F(GroupedMMCuda, Takes_more_groups_than_its_kernels) {
  EXPECT_EQ(worse_than_loop(Counts(detail::persistent_gemm::kMaxGroups + 1, 2), 16, 32), "");
  EXPECT_FALSE(
      detail::has_grouped_mm_kernels(device_values({1, 8}, 1, at::kBFloat16), detail::persistent_gemm::kMaxGroups + 1));
}

TEST_F(GroupedMMCuda, Takes_groups_of_which_all_but_one_are_empty) {
  for (const std::size_t full : {0U, 5U, 9U}) {
    Counts counts(10, 0);
    counts[full] = 700;
    EXPECT_EQ(worse_than_loop(counts, 200, 328), "") << full;
  }
  EXPECT_EQ(worse_than_loop({0, 0}, 16, 24), "");
}

// A box of rows may contain rows of two adjacent groups.
TEST_F(GroupedMMCuda, Keeps_groups_apart_when_one_is_not_finite) {
  const Counts counts = {100, 60, 37, 200};
  const at::Tensor x = device_values({sum_of(counts), 264}, 1, at::kBFloat16);
  const at::Tensor grad = device_values({sum_of(counts), 136}, 2, at::kBFloat16);
  const at::Tensor w = device_values({4, 264, 136}, 3, at::kBFloat16);
  const at::Tensor bad_x = x.clone(), bad_grad = grad.clone(), bad_w = w.clone();
  bad_x.narrow(0, 100, 60).fill_(std::nan(""));
  bad_grad.narrow(0, 100, 60).fill_(INFINITY);
  bad_w[1].fill_(std::nan(""));
  const at::Tensor offsets = groups_of(counts).offsets();
  const auto others = [](const at::Tensor& rows) {
    return at::cat({rows.narrow(0, 0, 100), rows.narrow(0, 160, 237)});
  };
  EXPECT_TRUE(at::equal(others(detail::grouped_gemm_cuda(bad_x, bad_w, offsets)),
                        others(detail::grouped_gemm_cuda(x, w, offsets))));
  const at::Tensor bad = detail::grouped_gemm_wgrad_cuda(bad_x, bad_grad, offsets);
  const at::Tensor good = detail::grouped_gemm_wgrad_cuda(x, grad, offsets);
  for (const std::int64_t g : {0, 2, 3}) EXPECT_TRUE(at::equal(bad[g], good[g])) << g;
  EXPECT_TRUE(bad[1].isnan().any().item<bool>());
}

TEST_F(GroupedMMCuda, Writes_no_row_of_another_group_and_nothing_behind_its_results) {
  const Counts counts = {33, 0, 5};
  const at::Tensor x = device_values({38, 64}, 1, at::kBFloat16), grad = device_values({38, 72}, 2, at::kBFloat16);
  const at::Tensor storage = at::full({3 * 64 * 72 + 64}, 7.0, at::TensorOptions(kGpu).dtype(at::kFloat));
  const at::Tensor out = storage.narrow(0, 32, 3 * 64 * 72).view({3, 64, 72});
  detail::write_grouped_gemm_wgrad_cuda(out, x, grad, groups_of(counts).offsets());
  EXPECT_EQ(out[1].abs().max().item<float>(), 0);
  EXPECT_TRUE(storage.narrow(0, 0, 32).eq(7).all().item<bool>());
  EXPECT_TRUE(storage.narrow(0, 32 + 3 * 64 * 72, 32).eq(7).all().item<bool>());
}

TEST_F(GroupedMMCuda, Takes_unaligned_strided_and_expanded_inputs) {
  const Counts counts = {70, 0, 130};
  const auto groups = groups_of(counts);
  const at::Tensor x = device_values({200, 72}, 1, at::kBFloat16), w = device_values({3, 72, 136}, 2, at::kBFloat16);
  const auto product = [&](const at::Tensor& rows, const at::Tensor& weights) {
    return grouped_mm(rows, weights, groups, GroupedMMBackend::kHopper);
  };
  const at::Tensor expected = product(x, w);
  const auto unaligned = [](const at::Tensor& tensor) {
    const at::Tensor storage = at::empty({tensor.numel() + 1}, tensor.options());
    return storage.narrow(0, 1, tensor.numel()).view(tensor.sizes()).copy_(tensor);
  };
  EXPECT_TRUE(at::equal(product(unaligned(x), unaligned(w)), expected));
  EXPECT_TRUE(at::equal(product(x.t().contiguous().t(), w), expected));
  EXPECT_TRUE(at::equal(product(x, w.permute({2, 0, 1}).contiguous().permute({1, 2, 0})), expected));
  const at::Tensor by_columns = w.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_TRUE(at::equal(product(x, by_columns), expected));
  const at::Tensor one_row = x.narrow(0, 0, 1).expand({200, 72});
  EXPECT_TRUE(at::equal(product(one_row, w), product(one_row.contiguous(), w)));
}

TEST_F(GroupedMMCuda, Writes_the_weight_gradient_to_bf16_and_float_with_one_rounding) {
  for (const Counts& counts : {Counts{0, 70, 0, 300, 16}, kEdges, Counts{0, 0}}) {
    for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{72, 264}, {7, 33}, {256, 512}}) {
      const auto groups = groups_of(counts);
      const at::Tensor x = device_values({sum_of(counts), in}, 1, at::kBFloat16);
      const at::Tensor grad = device_values({sum_of(counts), out}, 2, at::kBFloat16);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor written = device_values({groups.num_groups(), in, out}, 3, dtype);
        const at::Tensor w = leaf(at::zeros(written.sizes(), written.options().dtype(at::kDouble)));
        testing::backward({loop_of_products(x.to(at::kDouble), w, counts)}, {grad.to(at::kDouble)});
        detail::write_grouped_gemm_wgrad_cuda(written, x, grad, groups.offsets());
        const double unit = dtype == at::kFloat ? 1e-5 : std::ldexp(1.0, -8);
        const at::Tensor& exact = w.grad();
        const at::Tensor allowed = exact.abs() * unit + 1e-5 * exact.abs().max().item<double>();
        EXPECT_TRUE((written.to(at::kDouble) - exact).abs().le(allowed).all().item<bool>())
            << dtype << ' ' << in << " to " << out;
      }
    }
  }
}

TEST_F(GroupedMMCuda, Leaves_other_dtypes_to_LibTorch) {
  const Counts counts = {3, 0, 9};
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf}) {
    const at::Tensor x = device_values({12, 16}, 1, dtype), w = device_values({3, 16, 24}, 2, dtype);
    const at::Tensor y = grouped_mm(x, w, groups_of(counts), GroupedMMBackend::kHopper);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(testing::difference(y, loop_of_products(x, w, counts)), dtype == at::kHalf ? 2e-3 : 1e-5);
  }
}

// As in backward passes.
TEST_F(GroupedMMCuda, Starts_on_a_thread_that_has_not_used_the_device) {
  const Counts counts = {30, 10};
  const at::Tensor x = device_values({40, 64}, 1, at::kBFloat16), w = device_values({2, 64, 72}, 2, at::kBFloat16);
  const at::Tensor offsets = groups_of(counts).offsets();
  at::Tensor y, dw;
  std::jthread([&] { y = detail::grouped_gemm_cuda(x, w, offsets); }).join();
  std::jthread([&] { dw = detail::grouped_gemm_wgrad_cuda(x, y, offsets); }).join();
  EXPECT_TRUE(at::equal(y, detail::grouped_gemm_cuda(x, w, offsets)));
  EXPECT_TRUE(at::equal(dw, detail::grouped_gemm_wgrad_cuda(x, y, offsets)));
}

TEST_F(GroupedMMCuda, Does_not_wait_for_the_device) {
  const at::Tensor counts = at::tensor({100, 0, 28}, at::kLong).to(kGpu);
  const at::Tensor x = leaf(device_values({128, 64}, 1, at::kBFloat16));
  const at::Tensor w = leaf(device_values({3, 64, 128}, 2, at::kBFloat16));
  const at::Tensor grad = at::ones({128, 128}, x.options().requires_grad(false));
  const at::Tensor gradient = at::zeros({3, 64, 128}, grad.options().dtype(at::kFloat));
  EXPECT_FALSE(test::waits_for_device([&] {
    const auto groups = ExpertTokenGroups::from_counts(counts);
    testing::backward({grouped_mm(x, w, groups, GroupedMMBackend::kHopper)}, {grad});
    detail::write_grouped_gemm_wgrad_cuda(gradient, x.detach(), grad, groups.offsets());
  }));
}

// Rows, results and weight gradients with more elements than 32 bits can count.
TEST_F(GroupedMMCuda, Multiplies_more_than_2_31_elements) {
  if (testing::free_bytes() < (std::int64_t{40} << 30)) GTEST_SKIP() << "needs 40 GiB";
  constexpr std::int64_t kRows = 1100000, kWide = 2048, kNarrow = 64;
  const Counts counts = {500000, 100000, kRows - 600000};
  const at::Tensor offsets = groups_of(counts).offsets();
  const at::Tensor wide = testing::ramp({kRows, kWide}, 0.3, at::kBFloat16);
  const at::Tensor narrow = testing::ramp({kRows, kNarrow}, 0.7, at::kBFloat16);
  const at::Tensor w = testing::ramp({3, kWide, kNarrow}, 0.9, at::kBFloat16);
  const at::Tensor from_wide = detail::grouped_gemm_cuda(wide, w, offsets);
  const at::Tensor to_wide = detail::grouped_gemm_cuda(narrow, w.transpose(1, 2), offsets);
  const at::Tensor last = wide.narrow(0, kRows - 5, 5), last_narrow = narrow.narrow(0, kRows - 5, 5);
  EXPECT_LT(testing::difference(from_wide.narrow(0, kRows - 5, 5), at::matmul(last, w[2])), 1e-2);
  EXPECT_LT(testing::difference(to_wide.narrow(0, kRows - 5, 5), at::matmul(last_narrow, w[2].t())), 1e-2);
  const at::Tensor few_wide = wide.narrow(0, 0, 300);
  constexpr std::int64_t kGroups = 280, kIn = 4096;
  const at::Tensor x = testing::ramp({kGroups, kIn}, 0.1, at::kBFloat16);
  const at::Tensor gradient =
      detail::grouped_gemm_wgrad_cuda(x, few_wide.contiguous(), groups_of(Counts(kGroups, 1)).offsets());
  EXPECT_TRUE(at::equal(gradient[kGroups - 1], x[kGroups - 1].unsqueeze(1) * few_wide[kGroups - 1].unsqueeze(0)));
}

}  // namespace
}  // namespace d9d::kernels::grouped_mm_cuda_test
