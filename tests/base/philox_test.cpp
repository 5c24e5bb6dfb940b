#include "d9d/base/philox.h"

#include <gtest/gtest.h>

namespace d9d::philox_test {
namespace {

TEST(Philox, Equals_the_published_words) {
  EXPECT_EQ(philox4x32({}, 0), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const PhiloxWords ones = philox4x32({.low = ~0ULL, .high = ~0ULL}, ~0ULL);  // test vectors of the Random123 library
  EXPECT_EQ(ones, (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, First_words_follow_seed_and_offset) {
  EXPECT_EQ(philox4x32({.low = 1}, 0)[0], 0xf8e4cca4);
  EXPECT_EQ(philox4x32({.low = 3}, 1)[0], 0xc1f3cfa1);
  EXPECT_EQ(philox4x32({.low = 2}, 123456789)[0], 0x1781f091);
}

TEST(Philox, Keys_depend_on_seed_purpose_and_name) {
  const std::uint64_t key = philox_key(1, "init", "layers.0.weight");
  EXPECT_EQ(key, philox_key(1, "init", "layers.0.weight"));
  EXPECT_NE(key, philox_key(2, "init", "layers.0.weight"));
  EXPECT_NE(key, philox_key(1, "dropout", "layers.0.weight"));
  EXPECT_NE(philox_key(1, "ab", "c"), philox_key(1, "a", "bc"));
}

TEST(Philox, Doubles_lie_in_the_half_open_unit_interval) {
  EXPECT_EQ(uniform_double(0, 0), 0.0);
  EXPECT_LT(uniform_double(~0U, ~0U), 1.0);
  EXPECT_GT(uniform_double(~0U, ~0U), 0.9999999999999998);
}

}  // namespace
}  // namespace d9d::philox_test
