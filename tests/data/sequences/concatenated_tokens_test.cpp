#include "d9d/data/sequences/concatenated_tokens.h"

#include <random>

#include "tests/data/source/source_test.h"

namespace d9d::concatenated_tokens_test {
namespace {

using test::Ids;

// Every window of random documents, many of them empty, equals that of the joined vector.
TEST(ConcatenatedTokens, Reads_every_window_of_the_joined_documents) {
  std::mt19937 random(1);
  for (const std::optional<std::int64_t> separator : {std::optional<std::int64_t>(), std::optional<std::int64_t>(7)}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Ids> documents(random() % 200 + 1);
      Ids joined;
      for (std::size_t i = 0; i < documents.size(); ++i) {
        if (separator && i > 0) joined.push_back(*separator);
        documents[i].resize(round % 2 == 0 ? random() % 3 : random() % 2 * (random() % 9));
        for (auto& token : documents[i]) token = static_cast<std::int64_t>(10 + random() % 90);
        joined.insert(joined.end(), documents[i].begin(), documents[i].end());
      }
      const ConcatenatedTokens tokens(std::make_shared<const test::GivenDocuments>(documents), separator);
      ASSERT_EQ(tokens.size(), std::ssize(joined));
      for (std::int64_t start = 0; start <= tokens.size(); ++start) {
        Ids window(static_cast<std::size_t>(std::min<std::int64_t>(tokens.size() - start, random() % 300)));
        tokens.read(start, window);
        ASSERT_EQ(window, Ids(joined.begin() + start, joined.begin() + start + std::ssize(window))) << start;
      }
    }
  }
}

TEST(ConcatenatedTokens, Puts_separators_around_documents_of_one_token) {
  const ConcatenatedTokens tokens(std::make_shared<const test::GivenDocuments>(std::vector<Ids>{{1}, {2}, {3, 4}}), 7);
  Ids all(6);
  tokens.read(0, all);
  EXPECT_EQ(all, (Ids{1, 7, 2, 7, 3, 4}));
}

}  // namespace
}  // namespace d9d::concatenated_tokens_test
