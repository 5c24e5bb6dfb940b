// Conversations equal what transformers renders with the published templates, and the assistant speaks where a model
// that is asked would begin.
#include "d9d/tokenizer/chat/chat_template.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/tokenizer/chat/encode_chat.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::chat_template_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ChatFamily family_named(const std::string& name) {
  for (const auto& entry : enum_names(ChatFamily{})) {
    if (entry.name == name) return entry.value;
  }
  ADD_FAILURE() << name;
  return {};
}

bool is_llama(ChatFamily family) { return family == ChatFamily::kLlama3 || family == ChatFamily::kLlama32; }

void expect_equal(const nlohmann::json& line) {
  const ChatFamily family = family_named(line.at("family"));
  const auto messages = read_chat_messages(line.at("messages"), "messages");
  const RenderedChat chat = render_chat(family, messages,
                                        {.add_generation_prompt = line.at("add_generation_prompt").get<bool>(),
                                         .enable_thinking = line.at("enable_thinking").get<bool>()});
  ASSERT_EQ(chat.text, line.at("text").get<std::string>()) << line.at("family") << line.at("messages");
  const auto by_assistant = [](const ChatMessage& message) { return message.role == "assistant"; };
  ASSERT_EQ(std::ssize(chat.assistant), std::ranges::count_if(messages, by_assistant));
  std::vector<std::size_t> begins;
  const std::string end_token = is_llama(family) ? "<|eot_id|>" : "<|im_end|>";
  EXPECT_EQ(end_of_message(family), end_token);
  for (const auto& [begin, end] : chat.assistant) {
    begins.push_back(begin);
    EXPECT_EQ(chat.text.find(end_token, begin) + end_token.size(), end) << line;
  }
  for (const std::size_t begin : line.at("begins")) EXPECT_THAT(begins, ::testing::Contains(begin)) << line;
}

void expect_all_equal(const std::filesystem::path& file, std::ptrdiff_t count_of_family) {
  std::ifstream stream(file);
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(stream, line); ++count) {
    ASSERT_NO_FATAL_FAILURE(expect_equal(nlohmann::json::parse(line)));
  }
  EXPECT_EQ(count, count_of_family * std::ssize(enum_names(ChatFamily{})));
}

TEST(ChatTemplate, Renders_conversations_as_transformers_did) {
  expect_all_equal(D9D_SOURCE_DIR "/tests/tokenizer/chat/renderings.jsonl", 12);
}

// The templates belong to their publishers: chat_oracle.py says where they are.
TEST(ChatTemplate, Renders_thousands_of_conversations_as_transformers_does_where_the_published_templates_are) {
  const char* templates = std::getenv("D9D_CHAT_TEMPLATES");
  if (templates == nullptr) GTEST_SKIP() << "D9D_CHAT_TEMPLATES names no folder of published templates";
  const std::string file = ::testing::TempDir() + "chat_renderings.jsonl";
  test::run_python("tests/tokenizer/chat/chat_oracle.py", {templates, "1000", file});
  expect_all_equal(file, 1000);
  for (const auto& [family, name] : enum_names(ChatFamily{})) {
    std::ifstream stream(std::filesystem::path(templates) / (std::string(name) + ".jinja"));
    EXPECT_EQ(chat_family_of(std::string(std::istreambuf_iterator<char>(stream), {}), ""), family);
  }
}

TEST(ChatTemplate, Is_known_by_its_text_and_refused_by_name_otherwise) {
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
      "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  EXPECT_EQ(chat_family_of(chatml, ""), ChatFamily::kChatMl);
  EXPECT_EQ(chat_family_of(chatml + "\n", ""), ChatFamily::kChatMl);
  std::string other = chatml;
  other[3] = '-';
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)chat_family_of(other, "a.json: "); }),
              AllOf(HasSubstr("a.json: "), HasSubstr("chatml, qwen2, qwen2.5, qwen3, llama3, llama3.2"),
                    HasSubstr("name that family")));
}

std::string error_of(const char* messages) {
  return test::message_of<ConfigError>(
      [&] { (void)read_chat_messages(nlohmann::json::parse(messages), "row 3: messages"); });
}

TEST(ChatMessages, That_are_no_texts_of_roles_are_refused_by_name) {
  EXPECT_THAT(error_of("3"), HasSubstr("row 3: messages: expected a list of messages, got number"));
  EXPECT_THAT(error_of("[]"), HasSubstr("got an empty one"));
  EXPECT_THAT(error_of(R"([{"role": "user"}])"), HasSubstr("row 3: messages.0: expected an object"));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": [{"type": "image"}]}])"),
              AllOf(HasSubstr("messages.0.content: expected a text, got array"), HasSubstr("images")));
  EXPECT_THAT(error_of(R"([{"role": "user", "content": null}])"), HasSubstr("expected a text, got null"));
  EXPECT_THAT(error_of(R"([{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}])"),
              HasSubstr("messages.0.tool_calls: expected no such key"));
  EXPECT_NO_THROW((void)read_chat_messages(
      nlohmann::json::parse(R"([{"role": "assistant", "content": "", "tool_calls": null}])"), ""));
}

TEST(EncodeChat, Marks_the_tokens_that_the_assistant_says) {
  const Tokenizer tokenizer = Tokenizer::from_json(test::byte_tokenizer(), "bytes");
  const std::vector<ChatMessage> messages = {{"user", "é?"}, {"assistant", "日本"}, {"user", "a"}, {"assistant", ""}};
  const RenderedChat chat = render_chat(ChatFamily::kChatMl, messages);
  const EncodedChat encoded = encode_chat(tokenizer, chat);
  std::string said;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.is_assistant[i]) said += static_cast<char>(encoded.ids[i]);
  }
  EXPECT_EQ(encoded.ids.size(), chat.text.size());
  EXPECT_EQ(said, "日本<|im_end|><|im_end|>");
}

}  // namespace
}  // namespace d9d::chat_template_test
