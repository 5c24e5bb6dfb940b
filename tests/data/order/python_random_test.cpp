#include "d9d/data/order/python_random.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/python.h"

namespace d9d::python_random_test {
namespace {

TEST(PythonRandom, Draws_and_shuffles_as_Python_does) {
  for (const auto& expected : nlohmann::json::parse(test::run_python("tests/data/order/python_random_oracle.py", {}))) {
    const auto seed = expected.at("seed").get<std::uint64_t>();
    PythonRandom random(seed);
    for (const double uniform : expected.at("uniforms")) EXPECT_EQ(random.uniform(), uniform) << seed;
    std::vector<std::int64_t> order(expected.at("shuffled").size());
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(std::span(order));
    EXPECT_EQ(order, expected.at("shuffled").get<std::vector<std::int64_t>>()) << seed;
    EXPECT_EQ(random.uniform(), expected.at("after").get<double>()) << seed;
  }
}

}  // namespace
}  // namespace d9d::python_random_test
