#include "d9d/tokenizer/split/line_cut.h"

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/tokenizer/split/published_patterns.h"
#include "d9d/tokenizer/tokenizer.h"

#include "tests/support/byte_tokenizer.h"

namespace d9d::line_cut_test {
namespace {

using detail::LineCut;
using detail::next_line_cut;
using nlohmann::json;
using Ids = std::vector<std::uint32_t>;

// In which two of the bytes that matter are a token, so that ids show where words end.
json tokenizer_of(const json& pre_tokenizer) {
  json file = json::parse(test::byte_tokenizer({"<|end|>"}));
  int id = 256;
  for (const char* const first : {"Ċ", "Ġ", "č", ".", "/", "a", "B", "1", "'", "s"}) {
    for (const char* const second : {"Ċ", "Ġ", "č", ".", "/", "a", "B", "1", "'", "s"}) {
      file["model"]["vocab"][std::string(first) + second] = id++;
      file["model"]["merges"].push_back(std::string(first) + " " + second);
    }
  }
  for (json& added : file["added_tokens"]) added["id"] = id++;
  file["post_processor"] = nullptr;
  file["pre_tokenizer"] = pre_tokenizer;
  return file;
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json steps_of(std::string_view pattern, const std::vector<json>& before = {}) {
  json steps = before;
  steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(byte_level(false));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

const json kDigits = {{"type", "Digits"}, {"individual_digits", true}};

std::vector<json> cuttable() {
  std::vector<json> files = {tokenizer_of(byte_level(true))};
  for (const std::string_view pattern : {detail::kGpt2Pattern, detail::kQwen2Pattern, detail::kQwen35Pattern,
                                         detail::kLlama3Pattern, detail::kO200kPattern}) {
    files.push_back(tokenizer_of(steps_of(pattern)));
    files.push_back(tokenizer_of(steps_of(pattern, {kDigits})));
  }
  const std::size_t num_plain = files.size();
  for (const char* const form : {"NFC", "NFKD"}) {
    for (std::size_t i = 0; i < num_plain; ++i) {
      files.push_back(files[i]);
      files.back()["normalizer"] = {{"type", form}};
    }
  }
  return files;
}

Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, {.add_special_tokens = false}).ids;
}

TEST(LineCut, Leaves_the_ids_of_any_text_as_they_are) {
  const std::vector<std::string> parts = {"\n",     "\n",     " ",      " ",      "\r",     "\t",    ".",
                                          "/",      "a",      "B",      "1",      "'s",     "a ",    "<|end|>",
                                          "\u00e9", "\u0301", "\uff9e", "\u4e2d", "\u00a0", "\u2028"};
  constexpr int kTexts = 300;  // of each tokenizer
  std::mt19937 random(1);
  int num_cut = 0;
  for (const json& file : cuttable()) {
    const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "file");
    for (int text_of_file = 0; text_of_file < kTexts; ++text_of_file) {
      std::string text;
      for (std::size_t i = random() % 40; i > 0; --i) text += parts[random() % parts.size()];
      Ids of_pieces;
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t from = std::min<std::size_t>(begin + 1 + random() % 4, text.size());
        const std::size_t end = tokenizer.next_cut(text, from, text.size());
        ASSERT_GE(end, from);
        const Ids more = ids_of(tokenizer, std::string_view(text).substr(begin, end - begin));
        of_pieces.insert(of_pieces.end(), more.begin(), more.end());
        num_cut += end < text.size();
        begin = end;
      }
      ASSERT_EQ(of_pieces, ids_of(tokenizer, text)) << json(text) << file["pre_tokenizer"] << file["normalizer"];
    }
  }
  EXPECT_GT(num_cut, 1000);
}

TEST(LineCut, Is_the_first_in_a_range) {
  const std::string text = "a\nb\n\nc\n d";
  const auto all = [&](LineCut cut) {
    std::vector<std::size_t> found;
    for (std::size_t from = 0; from <= text.size(); ++from) {
      for (std::size_t to = from; to <= text.size(); ++to) {
        const std::size_t place = next_line_cut(text, from, to, cut);
        EXPECT_TRUE(place >= from && place <= to);
        EXPECT_EQ(place, std::min(to, next_line_cut(text, from, text.size(), cut)));
      }
      found.push_back(next_line_cut(text, from, text.size(), cut));
    }
    return found;
  };
  EXPECT_EQ(all(LineCut::kBehindBreak), (std::vector<std::size_t>{2, 2, 2, 5, 5, 5, 9, 9, 9, 9}));
  EXPECT_EQ(all(LineCut::kBeforeBreak), (std::vector<std::size_t>{1, 1, 4, 4, 4, 9, 9, 9, 9, 9}));
  EXPECT_EQ(next_line_cut(text, 0, 7, LineCut::kNone), 7U);
}

TEST(LineCut, Is_at_no_place_where_a_tokenizer_may_look_over_line_breaks) {
  const auto place = [](const json& file) { return Tokenizer::from_json(file.dump(), "file").next_cut("a\nb", 0, 3); };
  const json plain = tokenizer_of(byte_level(true));
  EXPECT_EQ(place(plain), 1U);
  json with_space = plain;
  with_space["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(place(with_space), 3U);
  EXPECT_EQ(place(tokenizer_of(steps_of(R"([a-z\n]+|\s+)"))), 3U);
  EXPECT_EQ(place(tokenizer_of(steps_of(detail::kQwen2Pattern))), 2U);
  EXPECT_EQ(place(tokenizer_of(byte_level(false))), 3U);
  json merged = tokenizer_of(steps_of(detail::kQwen2Pattern));
  merged["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext";
  EXPECT_EQ(place(merged), 3U);
  for (const char* const side : {"lstrip", "rstrip"}) {
    json strips = plain;
    strips["added_tokens"].back()[side] = true;
    EXPECT_EQ(place(strips), 3U) << side;
  }
  json has_break = plain;
  has_break["added_tokens"].back()["content"] = "a\nb";
  EXPECT_EQ(place(has_break), 3U);
}

}  // namespace
}  // namespace d9d::line_cut_test
