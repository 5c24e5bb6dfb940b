#include "d9d/data/order/permutation.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::permutation_test {
namespace {

std::vector<std::int64_t> all(const Permutation& permutation) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < permutation.size(); ++i) result.push_back(permutation(i));
  return result;
}

bool is_bijection(std::vector<std::int64_t> images) {
  std::sort(images.begin(), images.end());
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (images[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

TEST(Permutation, Visits_every_index_once) {
  for (std::int64_t size = 1; size <= 2000; ++size) {
    ASSERT_TRUE(is_bijection(all({size, {.seed = 5, .epoch = size % 3}}))) << "size " << size;
  }
  EXPECT_TRUE(is_bijection(all({(1 << 18) + 1, {.seed = 5}})));
}

TEST(Permutation, Stays_injective_and_in_range_for_more_than_32_bits) {
  const Permutation permutation((std::int64_t{1} << 40) + 12345, {.seed = 1});
  std::set<std::int64_t> images;
  for (std::int64_t i = 0; i < 20000; ++i) {
    const std::int64_t image = permutation(permutation.size() - 1 - i);
    ASSERT_TRUE(image >= 0 && image < permutation.size());
    images.insert(image);
  }
  EXPECT_EQ(images.size(), 20000u);
}

TEST(Permutation, Depends_on_seed_and_epoch_and_nothing_else) {
  const auto order = all({1000, {.seed = 1, .epoch = 2}});
  EXPECT_EQ(order, all({1000, {.seed = 1, .epoch = 2}}));
  EXPECT_NE(order, all({1000, {.seed = 1, .epoch = 3}}));
  EXPECT_NE(order, all({1000, {.seed = 2, .epoch = 2}}));
}

// In 12,000 draws each of the 24 orders of 4 elements is expected 500 times; the 0.9999 quantile of chi-square with 23
// degrees of freedom is 56.
TEST(Permutation, Draws_all_orders_of_four_equally_often) {
  std::map<std::vector<std::int64_t>, int> counts;
  for (std::uint64_t seed = 0; seed < 12000; ++seed) ++counts[all({4, {.seed = seed}})];
  ASSERT_EQ(counts.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 500.0) * (count - 500.0) / 500.0;
  EXPECT_LT(chi_square, 56);
}

// The position of element 0 in 20,000 draws of 20 positions; the 0.9999 quantile for 19 degrees of freedom is 50.
TEST(Permutation, Sends_an_element_everywhere_equally_often) {
  std::vector<int> counts(20, 0);
  for (std::int64_t epoch = 0; epoch < 20000; ++epoch) ++counts[Permutation(20, {.seed = 3, .epoch = epoch})(0)];
  double chi_square = 0;
  for (int count : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 50);
}

TEST(Permutation, Keeps_neighbours_apart) {
  const auto order = all({10000, {.seed = 9}});
  int adjacent = 0;  // a uniform permutation has two on average
  for (std::size_t i = 1; i < order.size(); ++i) adjacent += std::abs(order[i] - order[i - 1]) == 1 ? 1 : 0;
  EXPECT_LT(adjacent, 15);
}

// Checkpoints resume within an order, so it must never change.
TEST(Permutation, Keeps_the_order_of_earlier_builds) {
  EXPECT_EQ(all({8, {.seed = 1337, .epoch = 1}}), (std::vector<std::int64_t>{4, 1, 5, 7, 2, 3, 6, 0}));
}

TEST(Permutation, Rejects_an_empty_range) { EXPECT_THROW(Permutation(0, {}), ConfigError); }

}  // namespace
}  // namespace d9d::permutation_test
