// Each layout of the fixed list trains as one rank does, or is refused by name, and the page of them says so.
#include "tests/layout/support_list.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/layout/layout_case.h"
#include "tests/layout/support_page.h"
#include "tests/support/turns.h"

namespace d9d::test::support_list_test {
namespace {

class SupportList : public ::testing::TestWithParam<SupportCase> {};
INSTANTIATE_TEST_SUITE_P(Of, SupportList, ::testing::ValuesIn(in_turn(support_list(), 5)),
                         [](const auto& each) { return each.param.name; });

TEST_P(SupportList, Trains_as_one_rank_does) { EXPECT_EQ(fault_of(GetParam().drawn), ""); }

// What a user reads.
std::string message_of_refusal(const SupportCase& each) {
  try {
    (void)train(each.drawn);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(*refusal(each.drawn)), std::string::npos) << each.name << ": " << text;
    return text.substr(0, text.find('\n'));
  }
  ADD_FAILURE() << each.name << ": expected a refusal that names " << *refusal(each.drawn) << ", got a training";
  return "";
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// README.md with another summary of the page.
std::string with_summary(const std::string& readme, const std::string& summary) {
  const std::string begin = "<!-- layouts -->\n", end = "<!-- end of layouts -->";
  const std::size_t first = readme.find(begin), last = readme.find(end);
  if (first == std::string::npos || last == std::string::npos) return cat("no ", begin, " and ", end);
  return readme.substr(0, first + begin.size()) + summary + readme.substr(last);
}

// D9D_SUPPORT_PAGE: trains the whole list and writes the page, and its summary.
TEST(SupportPage, Is_what_the_list_gives) {
  const bool writes = std::getenv("D9D_SUPPORT_PAGE") != nullptr;
  std::map<std::string, std::string> refusals;
  for (const SupportCase& each : support_list()) {
    if (refusal(each.drawn)) {
      refusals.emplace(each.name, message_of_refusal(each));
    } else if (writes) {
      EXPECT_EQ(fault_of(each.drawn), "") << each.name;
    }
  }
  const std::string page = support_page(support_list(), refusals, rounded_meshes());
  const std::filesystem::path path = cat(D9D_SOURCE_DIR, "/docs/parallelism/support.md");
  const std::filesystem::path readme = cat(D9D_SOURCE_DIR, "/README.md");
  const std::string readme_text = with_summary(text_of(readme), support_summary(support_list(), refusals));
  if (writes && !HasFailure()) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << page;
    std::ofstream(readme) << readme_text;
  }
  for (const auto& [file, expected] : {std::pair(path, page), std::pair(readme, readme_text)}) {
    EXPECT_TRUE(text_of(file) == expected)
        << "expected " << file << " as the list gives it, got another. Run this with "
        << "D9D_SUPPORT_PAGE=write and commit what it writes";
  }
}

}  // namespace
}  // namespace d9d::test::support_list_test
