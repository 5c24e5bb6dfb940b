// Conversations equal what transformers renders with the published templates, and the assistant speaks where a model
// that is asked would begin.
#include "d9d/tokenizer/chat/chat_template.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/tokenizer/chat/chat_renderer.h"
#include "d9d/tokenizer/chat/encode_chat.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::chat_template_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ChatFamily family_named(const std::string& name) {
  for (const auto& entry : enum_names(ChatFamily{})) {
    if (entry.name == name) return entry.value;
  }
  ADD_FAILURE() << name;
  return {};
}

bool is_llama(ChatFamily family) { return family == ChatFamily::kLlama30 || family == ChatFamily::kLlama32; }

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

std::ptrdiff_t num_equal(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(stream, line); ++count) {
    expect_equal(nlohmann::json::parse(line));
    if (::testing::Test::HasFatalFailure()) return count;
  }
  return count;
}

void expect_all_equal(const std::filesystem::path& file, std::ptrdiff_t count_of_family) {
  EXPECT_EQ(num_equal(file), count_of_family * std::ssize(enum_names(ChatFamily{})));
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
    EXPECT_EQ(published_family_of(std::string(std::istreambuf_iterator<char>(stream), {})), family);
  }
}

const std::filesystem::path kTemplates = D9D_SOURCE_DIR "/tests/tokenizer/chat/templates";

// Files that publishers ship, read from a folder as users have them, in each of the ways in which they are shipped.
TEST(ChatTemplate, Of_each_published_revision_is_known_beside_a_tokenizer) {
  const std::filesystem::path folder = test::fresh_directory("d");
  std::set<ChatFamily> families;
  for (const auto& entry : std::filesystem::directory_iterator(kTemplates)) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".jinja") continue;
    const ChatFamily family = family_named(name.substr(0, name.find("__")));
    std::ifstream stream(entry.path());
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    std::filesystem::remove(folder / "chat_template.jinja");
    std::ofstream(folder / "tokenizer_config.json") << nlohmann::json{{"chat_template", text}};
    EXPECT_EQ(chat_renderer({.tokenizer = folder / "tokenizer.json"}).family(), family) << name;
    std::filesystem::remove(folder / "tokenizer_config.json");
    std::filesystem::copy_file(entry.path(), folder / "chat_template.jinja");
    EXPECT_EQ(chat_renderer({.tokenizer = folder / "tokenizer.json"}).family(), family) << name;
    families.insert(family);
  }
  EXPECT_EQ(families.size(), 4);
}

TEST(ChatTemplate, Of_each_published_revision_is_rendered_as_transformers_renders_it) {
  const std::string file = ::testing::TempDir() + "chat_revisions.jsonl";
  test::run_python("tests/tokenizer/chat/chat_oracle.py", {kTemplates.string(), "40", file});
  EXPECT_EQ(num_equal(file), 6 * 40);
}

TEST(ChatTemplate, Is_known_by_its_text) {
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
      "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  EXPECT_EQ(published_family_of(chatml), ChatFamily::kChatMl);
  EXPECT_EQ(published_family_of(chatml + "\n"), ChatFamily::kChatMl);
  std::string with_line_ends = chatml;
  for (std::size_t at = 0; (at = with_line_ends.find("\\n")) != std::string::npos;) with_line_ends.replace(at, 2, "\n");
  EXPECT_EQ(published_family_of(with_line_ends), ChatFamily::kChatMl);
  std::string other = chatml;
  other[3] = '-';
  EXPECT_EQ(published_family_of(other), std::nullopt);
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
  EXPECT_THAT(error_of(R"([{"role": "user", "content": null}])"),
              AllOf(HasSubstr("expected a text, got null"), HasSubstr("only calls tools"), Not(HasSubstr("images"))));
  for (const std::string key : {"tool_calls", "function_call"}) {
    EXPECT_THAT(error_of((R"([{"role": "assistant", "content": "", ")" + key + R"(": [{"id": 1}]}])").c_str()),
                HasSubstr("messages.0." + key + ": expected no calls of tools"));
  }
  EXPECT_THAT(error_of(R"([{"from": "human", "value": "a"}])"),
              AllOf(HasSubstr("ShareGPT"), HasSubstr("human is user")));
}

// What public data sets have in messages, and no template renders.
TEST(ChatMessages, May_have_keys_that_no_template_reads) {
  const auto json = nlohmann::json::parse(
      R"([{"role": "user", "content": "a", "id": 3, "name": "bob", "tool_calls": null},
          {"role": "assistant", "content": "b", "weight": 0, "tool_calls": [], "audio": null}])");
  std::set<std::string> others;
  const auto messages = read_chat_messages(json, "messages", &others);
  ASSERT_EQ(messages.size(), 2);
  EXPECT_EQ(messages[1].content, "b");
  EXPECT_THAT(others, ::testing::ElementsAre("id", "name", "weight"));
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
