// Every code point has the normal forms that it has in the tokenizers wheel, and every one but the most of the planes
// without characters the classes.
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/tokenizer/split/code_point_set.h"
#include "d9d/tokenizer/unicode/categories.h"
#include "d9d/tokenizer/unicode/normalization.h"

#include "tests/support/python.h"

namespace d9d::code_points_test {
namespace {

std::string oracle(const std::string& kind) {
  const std::string path = ::testing::TempDir() + "code_points_" + kind + ".bin";
  test::run_python("tests/tokenizer/unicode/code_point_oracle.py", {kind, path});
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first code point on which both differ, if any.
std::string difference(const detail::CodePointSet& ours, std::string_view flags) {
  for (char32_t code = 0; code < detail::kNumCodePoints; ++code) {
    const bool is_asked = flags[code] != 2;
    if (is_asked && ours.contains(code) != (flags[code] == 1)) return "code point " + std::to_string(code);
  }
  return "";
}

TEST(CodePoints, Are_of_the_same_classes) {
  const std::string file = oracle("classes");
  const std::map<std::string, detail::CodePointSet> sets = [] {
    std::map<std::string, detail::CodePointSet> result;
    result["space"] = result["space of tokens"] = detail::set_of_class(detail::kSpace);
    result["word of tokens"] = detail::set_of_class(detail::kWord);
    result["word"] = detail::pattern_word_characters();
    return result;
  }();
  constexpr std::size_t kName = 16;
  ASSERT_EQ(file.size(), 33 * (kName + detail::kNumCodePoints));
  for (std::size_t at = 0; at < file.size(); at += kName + detail::kNumCodePoints) {
    std::string name = file.substr(at, kName);
    name.resize(name.find_last_not_of(' ') + 1);
    const std::string_view flags = std::string_view(file).substr(at + kName, detail::kNumCodePoints);
    const auto known = sets.find(name);
    EXPECT_EQ(difference(known == sets.end() ? *detail::set_of_category(name) : known->second, flags), "") << name;
  }
}

TEST(CodePoints, Normalise_alike_alone_and_with_marks) {
  const std::string file = oracle("forms");
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < file.size();) {
    std::uint32_t size = 0;
    file.copy(reinterpret_cast<char*>(&size), sizeof size, at);
    texts.push_back(file.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  using enum detail::NormalForm;
  constexpr std::array kForms = {kNfc, kNfd, kNfkc, kNfkd};
  ASSERT_EQ(texts.size() % 8, 0U);
  for (std::size_t i = 0; i < texts.size(); i += 2) {
    const detail::NormalForm form = kForms[i / (texts.size() / 4)];
    const detail::NormalizedText normalized = detail::normalize(form, texts[i]);
    ASSERT_EQ(normalized.text, texts[i + 1]) << "form " << static_cast<int>(form);
    ASSERT_EQ(normalized.origins.size(), normalized.text.size());
    if (detail::is_normalized(form, texts[i])) {
      ASSERT_EQ(normalized.text, texts[i]);
    }
  }
}

}  // namespace
}  // namespace d9d::code_points_test
