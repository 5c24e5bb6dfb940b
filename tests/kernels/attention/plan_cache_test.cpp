#include "d9d/kernels/attention/plan_cache.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace d9d::kernels::detail::plan_cache_test {
namespace {

// Plans that know the key for which they were made, and a record of all keys for which a plan was made.
class PlanCacheOfNames : public ::testing::Test {
 protected:
  std::shared_ptr<const std::string> get(int key) {
    return cache_.get(key, [&] {
      made_.push_back(key);
      return std::to_string(key);
    });
  }

  PlanCache<int, std::string> cache_{/*max_plans=*/3};
  std::vector<int> made_;
};

TEST_F(PlanCacheOfNames, Makes_a_plan_once) {
  EXPECT_EQ(*get(1), "1");
  EXPECT_EQ(get(1), get(1));
  EXPECT_EQ(made_, std::vector{1});
}

TEST_F(PlanCacheOfNames, Drops_the_plan_that_nobody_has_asked_for_longest) {
  for (const int key : {1, 2, 3, 1, 4}) (void)get(key);  // 2 is evicted
  EXPECT_EQ(cache_.size(), 3U);
  for (const int key : {1, 3, 4}) (void)get(key);
  EXPECT_EQ(made_, (std::vector{1, 2, 3, 4}));
  EXPECT_EQ(*get(2), "2");
  EXPECT_EQ(made_.back(), 2);
}

TEST_F(PlanCacheOfNames, Leaves_a_plan_to_who_holds_it) {
  const std::shared_ptr<const std::string> held = get(1);
  for (int key = 2; key < 100; ++key) (void)get(key);
  EXPECT_EQ(cache_.size(), 3U);
  EXPECT_EQ(*held, "1");
  EXPECT_EQ(held.use_count(), 1);  // the cache has evicted it
}

TEST_F(PlanCacheOfNames, Keeps_what_it_has_when_a_plan_cannot_be_made) {
  for (const int key : {1, 2, 3}) (void)get(key);
  const auto fail = []() -> std::string { throw std::runtime_error("no such plan"); };
  EXPECT_THROW((void)cache_.get(4, fail), std::runtime_error);
  for (const int key : {1, 2, 3}) (void)get(key);
  EXPECT_EQ(made_, (std::vector{1, 2, 3}));
}

}  // namespace
}  // namespace d9d::kernels::detail::plan_cache_test
