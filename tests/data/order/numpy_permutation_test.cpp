#include "d9d/data/order/numpy_permutation.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/python.h"

namespace d9d::numpy_permutation_test {
namespace {

TEST(NumpyPermutation, Equals_numpy) {
  for (const auto& expected :
       nlohmann::json::parse(test::run_python("tests/data/order/numpy_permutation_oracle.py", {}))) {
    const auto seed = expected.at("seed").get<std::uint64_t>();
    const auto order = expected.at("order").get<std::vector<std::int64_t>>();
    EXPECT_EQ(numpy_permutation(std::ssize(order), seed), order) << seed;
  }
}

}  // namespace
}  // namespace d9d::numpy_permutation_test
