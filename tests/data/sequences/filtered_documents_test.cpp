#include "d9d/data/sequences/filtered_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/data/sequences/sample_values.h"
#include "tests/data/source/source_test.h"

namespace d9d::filtered_documents_test {
namespace {

using test::Ids;
using test::values;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Ids> inputs(const std::vector<Ids>& documents, DocumentRules rules) {
  const FilteredDocuments filtered(std::make_shared<const test::GivenDocuments>(documents), rules);
  std::vector<Ids> result;
  for (std::int64_t item = 0; item < filtered.size(); ++item) {
    const TokenSample sample = filtered.sample(item);
    EXPECT_EQ(sample.input_ids.numel(), filtered.num_positions(item));
    result.push_back(values(sample.input_ids));
  }
  return result;
}

TEST(FilteredDocuments, Predict_each_token_but_the_first) {
  const FilteredDocuments filtered(std::make_shared<const test::GivenDocuments>(std::vector<Ids>{{5, 6, 7}}),
                                   {.max_positions = 2});
  const TokenSample sample = filtered.sample(0);
  EXPECT_THAT(values(sample.input_ids), ElementsAre(5, 6));
  EXPECT_THAT(values(sample.labels), ElementsAre(6, 7));
  EXPECT_THAT(values(sample.position_ids), ElementsAre(0, 1));
}

TEST(FilteredDocuments, Leave_out_or_keep_those_without_a_label) {
  const std::vector<Ids> documents{{}, {1, 2}, {3}, {4, 5}, {}};
  EXPECT_THAT(inputs(documents, {.max_positions = 4}), ElementsAre(Ids{1}, Ids{4}));
  EXPECT_THAT(inputs(documents, {.max_positions = 4, .too_short = ShortDocuments::kKeep}),
              ElementsAre(Ids{}, Ids{1}, Ids{}, Ids{4}, Ids{}));
}

TEST(FilteredDocuments, Truncate_split_or_skip_those_that_are_too_long) {
  const std::vector<Ids> documents{{1, 2}, {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4}, {1, 2, 3}};
  EXPECT_THAT(inputs(documents, {.max_positions = 2, .too_long = LongDocuments::kTruncate}),
              ElementsAre(Ids{1}, Ids{1, 2}, Ids{1, 2}, Ids{1, 2}));
  EXPECT_THAT(inputs(documents, {.max_positions = 2, .too_long = LongDocuments::kSplit}),
              ElementsAre(Ids{1}, Ids{1, 2}, Ids{3, 4}, Ids{5}, Ids{1, 2}, Ids{3}, Ids{1, 2}));
  EXPECT_THAT(inputs(documents, {.max_positions = 2, .too_long = LongDocuments::kSkip}),
              ElementsAre(Ids{1}, Ids{1, 2}));
}

TEST(FilteredDocuments, Count_those_to_which_a_rule_applied) {
  const auto source =
      std::make_shared<const test::GivenDocuments>(std::vector<Ids>{{}, {1, 2, 3}, {1}, {1, 2}, {1, 2, 3, 4}, {7}});
  for (const auto rule : {LongDocuments::kTruncate, LongDocuments::kSplit, LongDocuments::kSkip}) {
    const FilteredDocuments filtered(source, {.max_positions = 1, .too_long = rule});
    EXPECT_EQ(filtered.counts().too_short, 3);
    EXPECT_EQ(filtered.counts().too_long, 2);
  }
}

TEST(FilteredDocuments, Refuse_by_name_what_is_too_long) {
  EXPECT_THAT(test::message_of<IoError>([] {
                (void)inputs({{1, 2}, {1, 2, 3, 4}}, {.max_positions = 2});
              }),
              AllOf(HasSubstr("at most 2 positions"), HasSubstr("4 tokens in document 1 of memory")));
}

TEST(FilteredDocuments, May_be_none_and_need_a_position) {
  EXPECT_THAT(inputs({{1}, {}}, {.max_positions = 2}), ElementsAre());
  EXPECT_THROW((void)inputs({{1, 2}}, {.max_positions = 0}), ConfigError);
}

// A document of ten tokens, of which tokens 3, 4, 7, 8 and 9 are targets.
class WithTargets final : public TokenDocuments {
 public:
  [[nodiscard]] std::int64_t size() const override { return 1; }
  [[nodiscard]] std::int64_t length(std::int64_t) const override { return 10; }
  void read(std::int64_t, std::int64_t start, std::span<std::int64_t> tokens) const override {
    for (std::int64_t& token : tokens) token = start++;
  }
  [[nodiscard]] std::vector<TokenRange> targets(std::int64_t) const override { return {{3, 5}, {7, 10}}; }
  [[nodiscard]] std::string place(std::int64_t) const override { return "it"; }
  [[nodiscard]] std::string name() const override { return "it"; }
};

TEST(FilteredDocuments, Ignore_labels_that_are_no_targets) {
  const auto labels = [](DocumentRules rules) {
    const FilteredDocuments filtered(std::make_shared<const WithTargets>(), rules);
    Ids all;
    for (std::int64_t item = 0; item < filtered.size(); ++item) {
      const TokenSample sample = filtered.sample(item);
      std::ranges::copy(values(sample.labels), std::back_inserter(all));
      for (std::int64_t i = 0; i < sample.input_ids.numel(); ++i) {  // inputs are untouched
        EXPECT_EQ(values(sample.input_ids)[i], item * rules.max_positions + i);
      }
    }
    return all;
  };
  constexpr std::int64_t kNo = kIgnoreIndex;
  EXPECT_THAT(labels({.max_positions = 9}), ElementsAre(kNo, kNo, 3, 4, kNo, kNo, 7, 8, 9));
  EXPECT_THAT(labels({.max_positions = 6, .too_long = LongDocuments::kTruncate}),
              ElementsAre(kNo, kNo, 3, 4, kNo, kNo));
  for (const std::int64_t length : {1, 2, 3, 4, 5, 8}) {
    EXPECT_THAT(labels({.max_positions = length, .too_long = LongDocuments::kSplit}),
                ElementsAre(kNo, kNo, 3, 4, kNo, kNo, 7, 8, 9));
  }
}

}  // namespace
}  // namespace d9d::filtered_documents_test
