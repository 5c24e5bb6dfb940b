#include "d9d/data/text/utf8.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/python.h"

namespace d9d::utf8_test {
namespace {

TEST(Utf8, Finds_the_first_invalid_byte_as_Python_does) {
  const auto cases = nlohmann::json::parse(test::run_python("tests/data/text/utf8_oracle.py", {}));
  ASSERT_GT(cases.size(), 1000U);
  for (const auto& [hex, position] : cases.get<std::vector<std::pair<std::string, std::int64_t>>>()) {
    std::string bytes;
    for (std::size_t i = 0; i < hex.size(); i += 2)
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    const auto found = first_invalid_utf8(bytes);
    EXPECT_EQ(found ? static_cast<std::int64_t>(*found) : -1, position) << hex;
  }
}

}  // namespace
}  // namespace d9d::utf8_test
