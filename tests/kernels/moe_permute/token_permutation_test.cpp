#include "d9d/kernels/moe_permute/token_permutation.h"

#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"

namespace d9d::kernels::token_permutation_test {
namespace {

using ::testing::ElementsAre;

at::Tensor ids_of(const std::vector<std::int64_t>& ids, std::int64_t experts_a_token) {
  return at::tensor(ids, at::kLong).view({-1, experts_a_token});
}

// Ids uniform in [-1, num_experts).
at::Tensor random_ids(std::int64_t num_tokens, std::int64_t experts_a_token, std::int64_t num_experts, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<std::int64_t> expert(-1, num_experts - 1);
  auto ids = at::empty({num_tokens, experts_a_token}, at::kLong);
  auto* id = ids.mutable_data_ptr<std::int64_t>();
  std::generate_n(id, ids.numel(), [&] { return expert(engine); });
  return ids;
}

void expect_same(const TokenPermutation& actual, const TokenPermutation& expected) {
  EXPECT_TRUE(at::equal(actual.row_to_slot, expected.row_to_slot));
  EXPECT_TRUE(at::equal(actual.row_to_token, expected.row_to_token));
  EXPECT_TRUE(at::equal(actual.slot_to_row, expected.slot_to_row));
  EXPECT_TRUE(at::equal(actual.groups.offsets(), expected.groups.offsets()));
  EXPECT_EQ(actual.groups.host_counts(), expected.groups.host_counts());
}

// The reference's row map: for each token its rows, descending, then their experts.
std::vector<std::int64_t> rows_and_experts(const at::Tensor& ids, const TokenPermutation& permutation,
                                           std::int64_t token) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  for (std::int64_t choice = 0; choice < ids.size(1); ++choice)
    pairs.emplace_back(permutation.slot_to_row[token][choice].item<std::int64_t>(),
                       ids[token][choice].item<std::int64_t>());
  std::sort(pairs.rbegin(), pairs.rend());
  std::vector<std::int64_t> result;
  for (const auto& pair : pairs) result.push_back(pair.first);
  for (const auto& pair : pairs) result.push_back(pair.second);
  return result;
}

TEST(TokenPermutation, Equals_the_reference_row_map) {
  const auto ids = ids_of({2, 0, 0, 1, 1, 2}, 2);
  const auto permutation = build_token_permutation({.expert_ids = ids, .num_experts = 3});
  EXPECT_THAT(permutation.groups.host_counts(), ElementsAre(2, 2, 2));
  EXPECT_TRUE(at::equal(permutation.row_to_token, at::tensor({0, 1, 1, 2, 0, 2}, at::kLong)));
  EXPECT_THAT(rows_and_experts(ids, permutation, 0), ElementsAre(4, 0, 2, 0));
  EXPECT_THAT(rows_and_experts(ids, permutation, 1), ElementsAre(2, 1, 1, 0));
  EXPECT_THAT(rows_and_experts(ids, permutation, 2), ElementsAre(5, 3, 2, 1));
}

TEST(TokenPermutation, Leaves_out_choices_that_live_elsewhere) {
  const auto permutation = build_token_permutation({.expert_ids = ids_of({-1, 1, 0, -1, -1, -1}, 2), .num_experts = 2});
  EXPECT_TRUE(at::equal(permutation.row_to_slot, at::tensor({2, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(permutation.row_to_token, at::tensor({1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(permutation.slot_to_row, ids_of({-1, 1, 0, -1, -1, -1}, 2)));
}

TEST(TokenPermutation, Sorts_by_expert_then_token_and_inverts_itself_on_random_ids) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const std::int64_t num_tokens = seed * 3 % 41, experts_a_token = 1 + seed % 5, num_experts = 1 + seed % 7;
    const auto ids = random_ids(num_tokens, experts_a_token, num_experts, seed);
    const auto permutation = build_token_permutation({.expert_ids = ids, .num_experts = num_experts});
    const auto experts = ids.flatten().index_select(0, permutation.row_to_slot);
    const auto order = experts * ids.numel() + permutation.row_to_slot;
    EXPECT_TRUE(order.numel() < 2 || order.diff().gt(0).all().item<bool>()) << seed;
    EXPECT_TRUE(at::equal(permutation.slot_to_row.flatten().index_select(0, permutation.row_to_slot),
                          at::arange(permutation.row_to_slot.numel())));
    EXPECT_TRUE(at::equal(permutation.slot_to_row.lt(0), ids.lt(0)));
  }
}

TEST(TokenPermutation, Is_the_same_from_both_implementations) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const std::int64_t num_experts = 1 + seed % 7;
    const auto ids = random_ids(seed, 1 + seed % 3, num_experts, seed);
    const TokenPermutationRequest request{.expert_ids = ids, .num_experts = num_experts};
    expect_same(detail::build_token_permutation_aten(request), detail::build_token_permutation_cpu(request));
    const TokenPermutationRequest counted{
        .expert_ids = ids, .num_experts = num_experts, .num_rows = ids.ge(0).sum().item<std::int64_t>()};
    expect_same(detail::build_token_permutation_aten(counted), detail::build_token_permutation_cpu(counted));
  }
}

TEST(TokenPermutation, Rejects_ids_out_of_range_and_a_wrong_row_count) {
  EXPECT_THROW((void)build_token_permutation({.expert_ids = ids_of({0, 2}, 2), .num_experts = 2}), ConfigError);
  EXPECT_THROW((void)build_token_permutation({.expert_ids = ids_of({0, -2}, 2), .num_experts = 2}), ConfigError);
  EXPECT_THROW((void)build_token_permutation({.expert_ids = ids_of({0, -1}, 2), .num_experts = 2, .num_rows = 2}),
               ConfigError);
  EXPECT_THROW((void)build_token_permutation({.expert_ids = at::zeros({2, 2}), .num_experts = 2}), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::token_permutation_test
