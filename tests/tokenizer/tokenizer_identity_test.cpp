#include "d9d/tokenizer/tokenizer_identity.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/tokenizer/tokenizer.h"

#include "tests/support/byte_tokenizer.h"

namespace d9d::tokenizer_identity_test {
namespace {

using nlohmann::json;

json with_merge() {
  json file = json::parse(test::byte_tokenizer({"<|im_start|>"}));
  file["model"]["vocab"]["ab"] = 256;
  file["model"]["merges"] = json::array({"a b"});
  for (const int token : {0, 1}) file["added_tokens"][token]["id"] = 257 + token;
  file["post_processor"] = nullptr;
  return file;
}

TEST(TokenizerIdentity, Does_not_depend_on_how_a_file_is_written) {
  json other = with_merge();
  other["model"]["merges"] = json::array({json::array({"a", "b"})});
  other["model"].erase("ignore_merges");
  other["pre_tokenizer"].erase("use_regex");
  other["pre_tokenizer"]["trim_offsets"] = false;
  other["post_processor"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}};
  EXPECT_EQ(identity_of_tokenizer(other), identity_of_tokenizer(with_merge()));
  EXPECT_EQ(Tokenizer::from_json(other.dump(2), "other").identity(), identity_of_tokenizer(with_merge()));
}

TEST(TokenizerIdentity, Tells_added_tokens_and_rules_from_the_vocabulary) {
  const TokenizerIdentity identity = identity_of_tokenizer(with_merge());
  json chat = with_merge();
  chat["added_tokens"][1]["content"] = "<|start|>";
  json digits = with_merge();
  digits["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, digits["pre_tokenizer"]}}};
  for (const json& file : {chat, digits}) {
    EXPECT_EQ(identity_of_tokenizer(file).vocabulary, identity.vocabulary);
    EXPECT_NE(identity_of_tokenizer(file).all, identity.all);
  }
  json moved = with_merge();
  std::swap(moved["model"]["vocab"]["x"], moved["model"]["vocab"]["y"]);
  EXPECT_NE(identity_of_tokenizer(moved).vocabulary, identity.vocabulary);
}

// Some files list a mark of the vocabulary among the added tokens, others do not, and others call it otherwise.
TEST(TokenizerIdentity, Has_a_vocabulary_without_marks_wherever_they_are_listed) {
  const auto with_mark = [](const std::string& mark, bool is_listed) {
    json file = with_merge();
    file["added_tokens"].erase(1);
    file["model"]["vocab"][mark] = 258;
    if (is_listed) {
      file["added_tokens"].push_back(file["added_tokens"][0]);
      file["added_tokens"][1].update({{"id", 258}, {"content", mark}});
    }
    return identity_of_tokenizer(file);
  };
  const TokenizerIdentity listed = with_mark("<|im_end|>", true);
  EXPECT_EQ(with_mark("<|im_end|>", false).vocabulary, listed.vocabulary);
  EXPECT_EQ(with_mark("<|eot_id|>", false).vocabulary, listed.vocabulary);
  EXPECT_EQ(listed.vocabulary, identity_of_tokenizer(with_merge()).vocabulary);
  EXPECT_NE(with_mark("<|im_end|>", false).all, listed.all);
}

TEST(TokenizerIdentity, Tells_what_is_added_or_split_in_another_way) {
  json stripping = with_merge(), prefixed = with_merge(), whole = with_merge();
  stripping["added_tokens"][1]["lstrip"] = true;
  prefixed["pre_tokenizer"]["add_prefix_space"] = true;
  for (const json& file : {stripping, prefixed}) {
    EXPECT_NE(identity_of_tokenizer(file).all, identity_of_tokenizer(with_merge()).all);
  }
  prefixed["pre_tokenizer"].erase("add_prefix_space");  // it is on by itself
  EXPECT_NE(identity_of_tokenizer(prefixed).all, identity_of_tokenizer(with_merge()).all);
  whole["model"].update({{"ignore_merges", true}, {"merges", json::array()}});
  json other_words = whole;
  other_words["model"]["vocab"].erase("ab");
  other_words["model"]["vocab"]["cd"] = 256;
  EXPECT_NE(identity_of_tokenizer(other_words).vocabulary, identity_of_tokenizer(whole).vocabulary);
}

TEST(TokenizerIdentity, Of_bytes_is_that_of_a_file_whose_ids_are_bytes) {
  const Tokenizer tokenizer = Tokenizer::from_json(byte_tokenizer_json(), "bytes");
  EXPECT_EQ(tokenizer.identity(), byte_tokenizer_identity());
  std::string text = "Grüße, \n\t日本 don't";
  const auto ids = tokenizer.encode(text).ids;
  ASSERT_EQ(ids.size(), text.size());
  for (std::size_t i = 0; i < text.size(); ++i) EXPECT_EQ(ids[i], static_cast<unsigned char>(text[i]));
  EXPECT_EQ(tokenizer.decode(ids), text);
}

}  // namespace
}  // namespace d9d::tokenizer_identity_test
