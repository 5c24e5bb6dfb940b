#include "d9d/tokenizer/chat/find_chat_family.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::find_chat_family_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class FindChatFamily : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
  void write_config(const nlohmann::json& chat_template) const {
    write("tokenizer_config.json", nlohmann::json{{"chat_template", chat_template}}.dump());
  }
  std::string error() const {
    return test::message_of<ConfigError>([&] { (void)chat_family_beside(folder / "tokenizer.json"); });
  }

  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d" / "find_chat_family";
};

TEST_F(FindChatFamily, Reads_both_files_of_published_tokenizers) {
  write_config(kChatMl);
  EXPECT_EQ(chat_family_beside(folder / "tokenizer.json"), ChatFamily::kChatMl);
  write_config({{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", kChatMl}}});
  EXPECT_EQ(chat_family_beside(folder / "tokenizer.json"), ChatFamily::kChatMl);
  write_config("of another model");
  write("chat_template.jinja", kChatMl);
  EXPECT_EQ(chat_family_beside(folder / "tokenizer.json"), ChatFamily::kChatMl);
}

TEST_F(FindChatFamily, Refuses_folders_without_a_published_template_by_name) {
  EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer.json'"), HasSubstr("got none")));
  write_config(nullptr);
  EXPECT_THAT(error(), HasSubstr("got none"));
  write_config("{{ messages }}");
  EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer_config.json: "), HasSubstr("'{{ messages }}...'")));
  write("tokenizer_config.json", "{");
  EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer_config.json: "), HasSubstr("no JSON")));
  write("chat_template.jinja", "");
  EXPECT_THAT(error(), HasSubstr("chat_template.jinja: "));
}

}  // namespace
}  // namespace d9d::find_chat_family_test
