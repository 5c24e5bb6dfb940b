#include "d9d/kernels/grouped_mm/grouped_mm.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::grouped_mm_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;
using ::testing::HasSubstr;

ExpertTokenGroups groups_of(const std::vector<std::int64_t>& counts) {
  return ExpertTokenGroups::from_counts(at::tensor(counts, at::kLong));
}

// The definition of the operator, in operators that autograd differentiates.
at::Tensor loop_of_products(const at::Tensor& x, const at::Tensor& w, const std::vector<std::int64_t>& counts) {
  std::vector<at::Tensor> parts;
  std::int64_t row = 0;
  for (std::size_t g = 0; g < counts.size(); row += counts[g++])
    parts.push_back(at::matmul(x.narrow(0, row, counts[g]), w[static_cast<std::int64_t>(g)]));
  return at::cat(parts);
}

struct Sizes {
  std::vector<std::int64_t> counts;
  std::int64_t in;
  std::int64_t out;
};

double error_against_loop(const Sizes& sizes, GroupedMMBackend backend, at::ScalarType dtype) {
  std::int64_t num_rows = 0;
  for (const auto count : sizes.counts) num_rows += count;
  const auto num_groups = static_cast<std::int64_t>(sizes.counts.size());
  return worst_difference(
      [&](const auto& in) { return std::vector{grouped_mm(in[0], in[1], groups_of(sizes.counts), backend)}; },
      [&](const auto& in) { return std::vector{loop_of_products(in[0], in[1], sizes.counts)}; },
      {values({num_rows, sizes.in}, 1, dtype), values({num_groups, sizes.in, sizes.out}, 2, dtype)});
}

const std::vector<Sizes>& many_sizes() {
  static const std::vector<Sizes> sizes = {
      {{3, 5}, 4, 8}, {{0, 4, 0, 7, 0}, 8, 16}, {{1}, 1, 1},   {{2, 0, 3}, 5, 7},
      {{0, 0}, 3, 4}, {{31, 1, 64, 2}, 33, 17}, {{9}, 12, 20}, {{1, 1, 1, 1, 1, 1}, 16, 3},
  };
  return sizes;
}

TEST(GroupedMM, Eager_equals_a_loop_of_products_in_fp64) {
  for (const auto& sizes : many_sizes()) {
    EXPECT_LT(error_against_loop(sizes, GroupedMMBackend::kEager, at::kDouble), 1e-13) << at::IntArrayRef(sizes.counts);
  }
}

TEST(GroupedMM, Torch_keeps_fp64_in_fp64) {
  EXPECT_LT(error_against_loop(many_sizes()[1], GroupedMMBackend::kTorch, at::kDouble), 1e-13);
}

TEST(GroupedMM, Torch_equals_a_loop_of_products_for_odd_features_and_empty_groups) {
  for (const auto& sizes : many_sizes()) {
    EXPECT_LT(error_against_loop(sizes, GroupedMMBackend::kTorch, at::kFloat), 1e-5) << at::IntArrayRef(sizes.counts);
    EXPECT_LT(error_against_loop(sizes, GroupedMMBackend::kTorch, at::kBFloat16), 2e-2)
        << at::IntArrayRef(sizes.counts);
  }
}

class GroupedMMBackends : public ::testing::TestWithParam<GroupedMMBackend> {};
INSTANTIATE_TEST_SUITE_P(All, GroupedMMBackends,
                         ::testing::Values(GroupedMMBackend::kTorch, GroupedMMBackend::kEager,
                                           GroupedMMBackend::kHopper),
                         [](const auto& backend) {
                           return backend.param == GroupedMMBackend::kTorch   ? "torch"
                                  : backend.param == GroupedMMBackend::kEager ? "eager"
                                                                              : "cutlass";
                         });

TEST_P(GroupedMMBackends, Give_a_group_without_rows_a_zero_weight_gradient) {
  for (const auto& counts : {std::vector<std::int64_t>{0, 2, 0}, std::vector<std::int64_t>{0, 0, 0}}) {
    const auto x = leaf(values({counts[1], 4}, 1, at::kFloat));
    const auto w = leaf(values({3, 4, 4}, 2, at::kFloat));
    const auto y = grouped_mm(x, w, groups_of(counts), GetParam());
    backward({y}, {at::ones_like(y)});
    ASSERT_TRUE(w.grad().defined());
    EXPECT_EQ(w.grad()[0].abs().max().item<float>(), 0);
    EXPECT_EQ(w.grad()[2].abs().max().item<float>(), 0);
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST_P(GroupedMMBackends, Multiply_by_two_weights_as_by_each) {
  const std::vector<std::int64_t> counts = {3, 0, 5};
  const auto error = worst_difference(
      [&](const auto& in) {
        return grouped_mms(in[0], {in[1], in[2]}, groups_of(counts), GetParam());
      },
      [&](const auto& in) {
        return std::vector{loop_of_products(in[0], in[1], counts), loop_of_products(in[0], in[2], counts)};
      },
      {values({8, 6}, 1, at::kFloat), values({3, 6, 4}, 2, at::kFloat), values({3, 6, 4}, 3, at::kFloat)});
  EXPECT_LT(error, 1e-5);
}

TEST_P(GroupedMMBackends, Differentiate_only_what_needs_a_gradient) {
  const auto x = values({4, 4}, 1, at::kFloat);
  const auto w = values({2, 4, 4}, 2, at::kFloat);
  const auto groups = groups_of({3, 1});
  const auto trainable_x = leaf(x), trainable_w = leaf(w);
  const auto from_x = grouped_mm(trainable_x, w, groups, GetParam());
  const auto from_w = grouped_mm(x, trainable_w, groups, GetParam());
  backward({from_x, from_w}, {at::ones_like(from_x), at::ones_like(from_w)});
  EXPECT_LT(difference(trainable_x.grad(), loop_of_products(at::ones({4, 4}), w.transpose(1, 2), {3, 1})), 1e-5);
  EXPECT_LT(difference(trainable_w.grad()[1], at::matmul(x.narrow(0, 3, 1).t(), at::ones({1, 4}))), 1e-5);
  EXPECT_FALSE(grouped_mm(x, w, groups, GetParam()).requires_grad());
}

TEST_P(GroupedMMBackends, Take_transposed_and_expanded_gradients) {
  const auto x = leaf(values({4, 4}, 1, at::kFloat));
  const auto w = values({2, 4, 4}, 2, at::kFloat);
  backward({grouped_mm(x, w, groups_of({3, 1}), GetParam())}, {at::ones({}).expand({4, 4})});
  EXPECT_LT(difference(x.grad(), loop_of_products(at::ones({4, 4}), w.transpose(1, 2), {3, 1})), 1e-5);
}

TEST_P(GroupedMMBackends, Reject_shapes_and_dtypes_that_do_not_fit) {
  const auto x = at::zeros({4, 3}), w = at::zeros({2, 3, 5});
  EXPECT_THROW((void)grouped_mm(at::zeros({4, 2}), w, groups_of({3, 1}), GetParam()), ConfigError);
  EXPECT_THROW((void)grouped_mm(x, w, groups_of({4}), GetParam()), ConfigError);
  EXPECT_THROW((void)grouped_mm(x.to(at::kDouble), w, groups_of({3, 1}), GetParam()), ConfigError);
}

TEST(GroupedMM, Rejects_two_weights_of_two_shapes) {
  EXPECT_THROW((void)grouped_mms(at::zeros({2, 3}), {at::zeros({1, 3, 4}), at::zeros({1, 3, 5})}, groups_of({2}),
                                 GroupedMMBackend::kEager),
               ConfigError);
}

TEST(GroupedMM, Eager_rejects_counts_that_do_not_add_up_to_the_rows) {
  EXPECT_THROW((void)grouped_mm(at::zeros({4, 3}), at::zeros({2, 3, 5}), groups_of({3, 2}), GroupedMMBackend::kEager),
               ConfigError);
}

TEST(ResolveGroupedMM, Without_a_preference_follows_the_device) {
  EXPECT_EQ(resolve_grouped_mm({}).backend, GroupedMMBackend::kEager);
  for (const auto& [capability, backend] : std::map<int, GroupedMMBackend>{{7, GroupedMMBackend::kEager},
                                                                           {8, GroupedMMBackend::kEager},
                                                                           {9, GroupedMMBackend::kTorch},
                                                                           {10, GroupedMMBackend::kTorch},
                                                                           {12, GroupedMMBackend::kEager}}) {
    EXPECT_EQ(resolve_grouped_mm({.is_cuda = true, .cuda_capability_major = capability}).backend, backend)
        << capability;
  }
}

TEST(ResolveGroupedMM, Prefers_the_configuration_to_the_environment_to_the_device) {
  const GroupedMMRequest on_hopper{.is_cuda = true, .cuda_capability_major = 9};
  auto request = on_hopper;
  request.environment = EagerGroupedMMConfig{};
  EXPECT_EQ(resolve_grouped_mm(request).backend, GroupedMMBackend::kEager);
  EXPECT_THAT(resolve_grouped_mm(request).why, HasSubstr("D9D_BACKEND_AUTO_GROUPED_MM"));
  request.configured = TorchGroupedMMConfig{};
  EXPECT_EQ(resolve_grouped_mm(request).backend, GroupedMMBackend::kTorch);
  EXPECT_THAT(resolve_grouped_mm(request).why, HasSubstr("configuration"));
}

TEST(ResolveGroupedMM, Prefers_the_kernels_of_this_library_where_they_are_built) {
  const GroupedMMRequest on_hopper{.is_cuda = true, .cuda_capability_major = 9, .has_own_kernels = true};
  EXPECT_EQ(resolve_grouped_mm(on_hopper).backend, GroupedMMBackend::kHopper);
  for (const GroupedMMConfig& config :
       std::vector<GroupedMMConfig>{HopperGroupedMMConfig{}, QuackGroupedMMConfig{}, GroupedGemmGroupedMMConfig{}}) {
    auto request = on_hopper;
    request.environment = config;
    EXPECT_EQ(resolve_grouped_mm(request).backend, GroupedMMBackend::kHopper);
  }
  auto request = on_hopper;
  request.configured = TorchGroupedMMConfig{};
  EXPECT_EQ(resolve_grouped_mm(request).backend, GroupedMMBackend::kTorch);
}

TEST(ResolveGroupedMM, Says_why_the_kernels_of_this_library_are_off) {
  EXPECT_THAT(resolve_grouped_mm({.is_cuda = true, .cuda_capability_major = 9}).why, HasSubstr("no CUDA kernels"));
  EXPECT_THAT(resolve_grouped_mm({.is_cuda = true, .cuda_capability_major = 10}).why,
              HasSubstr("need compute capability 9"));
}

TEST(ResolveGroupedMM, Runs_kernels_that_are_not_built_on_those_that_are_and_says_so) {
  for (const auto& [name, config] :
       std::map<std::string, GroupedMMConfig>{{"quack", QuackGroupedMMConfig{}},
                                              {"grouped_gemm", GroupedGemmGroupedMMConfig{}},
                                              {"cutlass", HopperGroupedMMConfig{}}}) {
    const auto on_gpu = resolve_grouped_mm({.configured = config, .is_cuda = true, .cuda_capability_major = 9});
    EXPECT_EQ(on_gpu.backend, GroupedMMBackend::kTorch);
    EXPECT_THAT(on_gpu.why, HasSubstr(name));
    EXPECT_EQ(resolve_grouped_mm({.configured = config}).backend, GroupedMMBackend::kEager);
  }
}

}  // namespace
}  // namespace d9d::kernels::grouped_mm_test
