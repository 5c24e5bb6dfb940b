#include "d9d/data/text/marked_text.h"

#include <gtest/gtest.h>

namespace d9d::marked_text_test {
namespace {

class OneDocument final : public TokenDocuments {
 public:
  std::int64_t size() const override { return 1; }
  std::int64_t length(std::int64_t) const override { return std::ssize(kText); }
  void read(std::int64_t, std::int64_t start, std::span<std::int64_t> tokens) const override {
    for (std::int64_t& token : tokens) token = kText[static_cast<std::size_t>(start++)];
  }
  std::vector<TokenRange> targets(std::int64_t) const override { return kTargets; }
  std::string place(std::int64_t) const override { return "here"; }
  std::string name() const override { return "one"; }

  const std::string kText = "ask:say\nask:more";
  const std::vector<TokenRange> kTargets = {{.begin = 4, .end = 7}, {.begin = 12, .end = 16}};
};

TEST(MarkedText, Has_marks_around_what_is_learned) {
  const OneDocument documents;
  const std::vector<std::int64_t> tokens(documents.kText.begin(), documents.kText.end());
  EXPECT_EQ(marked_text(tokens, documents.kTargets, ByteEncoder()), "ask:⟦say⟧\nask:⟦more⟧");
  EXPECT_EQ(marked_line(documents, 0, /*max_tokens=*/100, ByteEncoder()), "ask:⟦say⟧\\nask:⟦more⟧");
  EXPECT_EQ(marked_line(documents, 0, /*max_tokens=*/14, ByteEncoder()), "ask:⟦say⟧\\nask:⟦mo⟧ ...");
  EXPECT_EQ(marked_line(documents, 0, /*max_tokens=*/5, ByteEncoder()), "ask:⟦s⟧ ...");
}

}  // namespace
}  // namespace d9d::marked_text_test
