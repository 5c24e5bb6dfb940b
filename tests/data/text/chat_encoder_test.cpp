#include "d9d/data/text/chat_encoder.h"

#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/data/source/source_test.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::chat_encoder_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kStart = 257, kEnd = 258;  // <|im_start|> and <|im_end|>

class Chat : public test::SourceTest {
 protected:
  std::string tokenizer(const std::vector<std::string>& more = {"<|im_start|>", "<|im_end|>"}) const {
    return write("tokenizer.json", test::byte_tokenizer(more));
  }
  EncodedRow encode(std::string_view row, std::optional<std::int64_t> end = {}) const {
    return ChatEncoder(tokenizer(), ChatRenderer(ChatFamily::kChatMl)).encode_row({&row, 1}, end);
  }
  static std::string text_of(const EncodedRow& row, const TokenRange& range) {
    std::string text;
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const std::int64_t token = row.tokens.at(static_cast<std::size_t>(i));
      text += token == kStart ? "[" : token == kEnd ? "]" : std::string(1, static_cast<char>(token));
    }
    return text;
  }
};

TEST_F(Chat, Has_what_the_assistant_says_in_each_turn_as_targets) {
  const EncodedRow row = encode(
      R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c?"}, {"role": "assistant", "content": ""}])",
      /*end=*/'.');
  EXPECT_EQ(row.problem, "");
  EXPECT_EQ(text_of(row, {0, std::ssize(row.tokens)}), "[user\na?]\n[assistant\nb]\n[user\nc?]\n[assistant\n]\n.");
  std::vector<std::string> said;
  for (const TokenRange& range : row.targets.value()) said.push_back(text_of(row, range));
  EXPECT_THAT(said, ElementsAre("b]", "]"));
}

TEST_F(Chat, That_cannot_be_rendered_is_a_problem_of_its_row) {
  EXPECT_THAT(encode("[").problem, HasSubstr("no JSON"));
  EXPECT_THAT(encode("[]").problem, HasSubstr("messages: expected a list of messages, got an empty one"));
  EXPECT_THAT(encode(R"([{"role": "assistant", "content": null, "tool_calls": []}])").problem,
              HasSubstr("messages.0.content: expected a text, got null"));
  EXPECT_THAT(encode(R"([{"role": "user", "content": "a"}])").problem, HasSubstr("the assistant says nothing"));
  EXPECT_THAT(encode(R"([{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}])").problem,
              HasSubstr("the assistant says nothing, of the roles bot, user"));
  EXPECT_THAT(encode(R"([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}])").problem,
              HasSubstr("as ShareGPT has them"));
}

// Its template renders tools and calls; what an answer adds to the text is a target, without the line end behind it.
TEST_F(Chat, Of_a_template_of_ones_own_has_tools_and_targets) {
  const auto jinja = std::make_shared<const JinjaTemplate>(
      JinjaSource{.text = "{{ tools | tojson if tools }}{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}"
                          "{{ m.tool_calls | tojson if m.tool_calls }}<|im_end|>{{ '\\n' }}{% endfor %}"
                          "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
                  .place = "own.jinja"});
  const ChatEncoder encoder(tokenizer(), ChatRenderer(jinja));
  const std::vector<std::string_view> columns = {
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{"z": 1, "a": 2}]}])",
      R"([{"name": "f", "description": null}])"};
  const EncodedRow row = encoder.encode_row(columns, {});
  EXPECT_EQ(row.problem, "");
  EXPECT_EQ(text_of(row, {0, std::ssize(row.tokens)}),
            "[{\"name\": \"f\", \"description\": null}][user:a]\n[assistant:b[{\"z\": 1, \"a\": 2}]]\n");
  ASSERT_EQ(std::ssize(row.targets.value()), 1);
  EXPECT_EQ(text_of(row, row.targets->front()), R"(b[{"z": 1, "a": 2}]])");
  const std::string_view refused = R"([{"role": "user", "content": "a"}])";
  EXPECT_THAT(encoder.encode_row({&refused, 1}, {}).problem,
              HasSubstr("the assistant says nothing, of the roles user"));
}

TEST_F(Chat, Tells_that_no_conversation_has_tools) {
  const auto jinja = std::make_shared<const JinjaTemplate>(
      JinjaSource{.text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
                  .place = "own.jinja"});
  const ChatEncoder encoder(tokenizer(), ChatRenderer(jinja));
  const auto add = [&](std::string_view tools) {
    const std::vector<std::string_view> columns = {R"([{"role": "assistant", "content": "b"}])", tools};
    EXPECT_EQ(encoder.encode_row(columns, {}).problem, "");
  };
  EXPECT_EQ(encoder.remark(), "");
  add("null");
  EXPECT_THAT(encoder.remark(), HasSubstr("no conversation has tools in tools_column"));
  add(R"([{"name": "f"}])");
  EXPECT_EQ(encoder.remark(), "");
}

TEST_F(Chat, Tells_which_keys_of_messages_the_template_does_not_read) {
  const ChatEncoder encoder(tokenizer(), ChatRenderer(ChatFamily::kChatMl));
  EXPECT_EQ(encoder.remark(), "");
  for (const std::string_view row :
       {R"([{"role": "assistant", "content": "a", "weight": 0}])",
        R"([{"role": "assistant", "content": "a", "reasoning_content": "b", "tool_calls": []}])"}) {
    EXPECT_EQ(encoder.encode_row({&row, 1}, {}).problem, "");
  }
  EXPECT_THAT(encoder.remark(), HasSubstr("chatml does not read: reasoning_content, weight."));
}

TEST_F(Chat, Refuses_tokenizers_without_the_tokens_of_the_template) {
  const auto error = [&](ChatFamily family) {
    return test::message_of<ConfigError>([&] { ChatEncoder(tokenizer({"<|im_start|>"}), ChatRenderer(family)); });
  };
  EXPECT_THAT(error(ChatFamily::kQwen3), HasSubstr("chat template 'qwen3', got none '<|im_end|>'"));
  EXPECT_THAT(error(ChatFamily::kLlama30), HasSubstr("got none '<|begin_of_text|>'"));
}

TEST_F(Chat, Is_another_document_with_another_template) {
  const std::string file = tokenizer();
  EXPECT_NE(ChatEncoder(file, ChatRenderer(ChatFamily::kChatMl)).fingerprint(),
            ChatEncoder(file, ChatRenderer(ChatFamily::kQwen3)).fingerprint());
  EXPECT_NE(ChatEncoder(file, ChatRenderer(ChatFamily::kChatMl)).fingerprint(),
            TokenizerEncoder(file, {}).fingerprint());
}

}  // namespace
}  // namespace d9d::chat_encoder_test
