#include "d9d/tokenizer/chat/chat_renderer.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::chat_renderer_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// The same in other words.
constexpr const char* kOtherChatMl =
    "{%- for m in messages -%}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>{{ '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}";
constexpr const char* kOwn =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kChat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";

class RenderedChats : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
  void write_config(const nlohmann::json& chat_template) const {
    write("tokenizer_config.json", nlohmann::json{{"chat_template", chat_template}}.dump());
  }
  ChatRenderer found(const std::optional<std::string>& chat_template = {}) const {
    return chat_renderer({.tokenizer = folder / "tokenizer.json", .chat_template = chat_template});
  }
  std::string error(const std::optional<std::string>& chat_template = {}) const {
    return test::message_of<ConfigError>([&] { (void)found(chat_template); });
  }
  static std::vector<std::string> said(const RenderedChat& chat) {
    std::vector<std::string> all;
    for (const auto& [begin, end] : chat.assistant) all.push_back(chat.text.substr(begin, end - begin));
    return all;
  }

  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d" / "chat_renderer";
};

TEST_F(RenderedChats, Read_both_files_of_published_tokenizers) {
  write_config(kChatMl);
  EXPECT_EQ(found().family(), ChatFamily::kChatMl);
  write_config({{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", kChatMl}}});
  EXPECT_EQ(found().family(), ChatFamily::kChatMl);
  write_config("of another model");
  write("chat_template.jinja", kChatMl);
  EXPECT_EQ(found().family(), ChatFamily::kChatMl);
}

TEST_F(RenderedChats, Of_a_text_that_writes_what_a_family_does_are_that_familys) {
  write("chat_template.jinja", kOtherChatMl);
  EXPECT_EQ(found().family(), ChatFamily::kChatMl);
  EXPECT_EQ(found("chatml").family(), ChatFamily::kChatMl);
}

TEST_F(RenderedChats, Of_any_other_template_are_rendered_by_it) {
  write("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  write("chat_template.jinja", cat("{{ bos_token }}", kOwn));
  const ChatRenderer own = found();
  EXPECT_FALSE(own.family());
  const RenderedChat chat = own.render(kChat);
  EXPECT_EQ(chat.text, "<s><user>a<assistant>b</s>");
  EXPECT_THAT(said(chat), ::testing::ElementsAre("b</s>"));
  EXPECT_EQ(own.end_of_answer(), "</s>");
  EXPECT_EQ(own.render(kChat, {}, {.add_generation_prompt = true}).text, "<s><user>a<assistant>b</s><assistant>");
}

TEST_F(RenderedChats, Of_a_template_without_marks_say_what_answers_add_to_the_text) {
  write("chat_template.jinja", cat("{{ '<s>' }}", kOtherChatMl));
  const RenderedChat chat = found().render(
      R"([{"role": "user", "content": "ü"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "dé"}])");
  EXPECT_THAT(said(chat), ::testing::ElementsAre("b<|im_end|>\n", "dé<|im_end|>\n"));
  // Its first answer is no more there when the second is written.
  write("chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'user' or loop.last %}<{{ m.role }}>{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_THAT(said(found().render(kChat)), ::testing::ElementsAre("b"));
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)found().render(
                    R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])");
              }),
              AllOf(HasSubstr("{% generation %} in no place"), HasSubstr("message 1 is not the beginning")));
  EXPECT_EQ(found().render_text(
                R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])"),
            "<user>a<user>c<assistant>d");
  // Questions that the template ends need no beginning of an answer.
  write("chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>"
        "{% endif %}{% endfor %}");
  EXPECT_THAT(said(found().render(kChat)), ::testing::ElementsAre(" b</s>"));
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)found().render(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}])");
              }),
              HasSubstr("no beginning of an answer"));
  // Without the beginning of an answer nobody knows where it begins.
  write("chat_template.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)found().render(kChat); }),
              HasSubstr("no beginning of an answer"));
  write("chat_template.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}");
  EXPECT_EQ(found().end_of_answer(), "</s>");
}

TEST_F(RenderedChats, Of_a_template_with_another_one_for_tools_are_rendered_by_that) {
  constexpr const char* kTools = R"([{"name": "f"}])";
  write_config({{{"name", "tool_use"}, {"template", cat("{{ tools | tojson }}", kOwn)}},
                {{"name", "default"}, {"template", kOwn}}});
  EXPECT_EQ(found().render(kChat, kTools).text, R"([{"name": "f"}]<user>a<assistant>b</s>)");
  EXPECT_EQ(found().render(kChat, "[]").text, "<user>a<assistant>b</s>");
  write("chat_template.jinja", kOwn);
  EXPECT_EQ(found().render(kChat, kTools).text, "<user>a<assistant>b</s>");
  std::filesystem::create_directories(folder / "additional_chat_templates");
  const ChatRenderer without = found();
  write("additional_chat_templates/tool_use.jinja", cat("with tools:", kOwn));
  EXPECT_EQ(found().render(kChat, kTools).text, "with tools:<user>a<assistant>b</s>");
  EXPECT_NE(found().fingerprint(), without.fingerprint());
}

TEST_F(RenderedChats, Have_the_variables_that_options_give) {
  const auto with = [&](const std::string& kwargs, const std::optional<std::string>& chat_template = {}) {
    return chat_renderer(
        {.tokenizer = folder / "tokenizer.json", .chat_template = chat_template, .template_kwargs = kwargs});
  };
  const auto refusal = [&](const std::string& kwargs, const std::string& chat_template) {
    return test::message_of<ConfigError>([&] { (void)with(kwargs, chat_template); });
  };
  EXPECT_THAT(refusal(R"({"enable_thinking":false})", "chatml"), HasSubstr("that the family chatml knows"));
  EXPECT_THAT(refusal(R"({"thinking":false})", "qwen3"), HasSubstr(R"(got {"thinking":false})"));
  write("chat_template.jinja", cat("{{ style if style is defined else '' }}{{ bos_token }}", kOwn));
  write("special_tokens_map.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(with("").render(kChat).text, "<s><user>a<assistant>b</s>");
  EXPECT_EQ(with(R"({"style": ["x", 1]})").render(kChat).text, "['x', 1]<s><user>a<assistant>b</s>");
  EXPECT_EQ(with(R"({"bos_token": ""})").render(kChat).text, "<user>a<assistant>b</s>");
  EXPECT_NE(with(R"({"style": 1})").fingerprint(), with("").fingerprint());
  for (const char* const no_object : {"[1]", "{", "1"}) {
    EXPECT_THAT(test::message_of<ConfigError>([&] { (void)with(no_object); }),
                HasSubstr(cat("expected an object as chat_template_kwargs, such as {\"enable_thinking\": false}, got ",
                              no_object)));
  }
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)with(R"({"messages": []})"); }),
              HasSubstr("that conversations do not set, got \"messages\""));

  const std::string published = D9D_SOURCE_DIR "/tests/tokenizer/chat/templates/qwen3__second.jinja";
  std::filesystem::copy_file(published, folder / "chat_template.jinja",
                             std::filesystem::copy_options::overwrite_existing);
  const ChatRenderer silent = with(R"({"enable_thinking":false})");
  EXPECT_EQ(silent.family(), ChatFamily::kQwen3);
  const ChatOptions prompt{.add_generation_prompt = true};
  EXPECT_TRUE(silent.render(kChat, "", prompt).text.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_EQ(silent.render(kChat, "", prompt).text, silent.jinja()->render(kChat, "", prompt, /*answers=*/false).text);
  EXPECT_EQ(with(R"({"enable_thinking":true})").render(kChat, "", prompt).text,
            with("").render(kChat, "", prompt).text);
  EXPECT_FALSE(with(R"({"enable_thinking":"no"})").family());
}

// As transformers gives templates the reasoning under each of its names.
TEST_F(RenderedChats, Of_a_family_are_what_its_text_writes_of_unusual_messages) {
  const std::string published = D9D_SOURCE_DIR "/tests/tokenizer/chat/templates/qwen3__second.jinja";
  std::filesystem::copy_file(published, folder / "chat_template.jinja");
  const ChatRenderer qwen3 = found();
  ASSERT_EQ(qwen3.family(), ChatFamily::kQwen3);
  for (const char* const answer :
       {R"("content": "b", "thinking": "t")", R"("content": "b", "reasoning": "r")",
        R"("content": "b", "thinking": "t", "reasoning": "r", "reasoning_content": null)", R"("content": null)",
        R"("name": "b")", R"("content": [{"type": "text", "text": "b"}])",
        R"("content": "b", "reasoning_content": ["r"])",
        R"("content": "b", "function_call": {"name": "f", "arguments": "{}"})"}) {
    const std::string chat = cat(R"([{"role": "user", "content": "a"}, {"role": "assistant", )", answer, "}]");
    EXPECT_EQ(qwen3.render(chat).text, qwen3.jinja()->render(chat, "", {}, /*answers=*/false).text) << answer;
  }
  // It is no family's text: none writes names.
  write("chat_template.jinja",
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ ' ' + m.name if m.name }}{{ '\n' + m.content }}<|im_end|>"
        "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}");
  EXPECT_FALSE(found().family());
}

TEST_F(RenderedChats, With_tools_are_rendered_by_the_text_of_a_family_too) {
  constexpr const char* kTools = R"([{"type": "function", "function": {"name": "f", "zeta": 1, "alpha": 2}}])";
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)ChatRenderer(ChatFamily::kQwen3).render(kChat, kTools); }),
              HasSubstr("Put chat_template.jinja beside the tokenizer"));
  const std::string published = D9D_SOURCE_DIR "/tests/tokenizer/chat/templates/qwen3__second.jinja";
  std::filesystem::copy_file(published, folder / "chat_template.jinja");
  const ChatRenderer qwen3 = found();
  EXPECT_EQ(qwen3.family(), ChatFamily::kQwen3);
  EXPECT_THAT(qwen3.render(kChat, kTools).text, HasSubstr(R"("name": "f", "zeta": 1, "alpha": 2)"));  // in this order
  EXPECT_EQ(qwen3.render(kChat, "[]").text, qwen3.render(kChat).text);
}

TEST_F(RenderedChats, Are_refused_by_name_where_a_template_is_missing_or_wrong) {
  EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer.json'"), HasSubstr("got none"), HasSubstr("chatml, qwen2")));
  EXPECT_THAT(error("gemma"), AllOf(HasSubstr("got 'gemma'"), HasSubstr("chatml, qwen2")));
  write_config(nullptr);
  EXPECT_THAT(error(), HasSubstr("got none"));
  write("tokenizer_config.json", "{");
  EXPECT_THAT(error(), AllOf(HasSubstr("tokenizer_config.json: "), HasSubstr("no JSON")));
  write("tokenizer_config.json", "{}");
  write("chat_template.jinja", "{% for m in messages %}");
  EXPECT_THAT(test::message_of<IoError>([&] { (void)found(); }),
              AllOf(HasSubstr("chat_template.jinja'"), HasSubstr("line 1")));
  const auto without_python = [&] {
    (void)chat_renderer({.tokenizer = folder / "tokenizer.json", .python = "/nowhere/python"});
  };
  EXPECT_THAT(test::message_of<IoError>(without_python),
              AllOf(HasSubstr("package jinja2"), HasSubstr("/nowhere/python"), HasSubstr("key \"python\"")));
}

TEST_F(RenderedChats, Are_refused_where_the_template_learns_the_prompt_or_nothing) {
  write("chat_template.jinja",
        "{% for m in messages %}{% generation %}<{{ m.role }}>{{ m.content }}{% endgeneration %}{% endfor %}");
  EXPECT_THAT(error(), HasSubstr("got it around what the system says"));
  write("chat_template.jinja",
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_THAT(error(), HasSubstr("got it around what the user says"));
  write("chat_template.jinja",  // what tools answer belongs to the turn of the assistant
        "{% for m in messages %}<{{ m.role }}>{% if m.role in ['assistant', 'tool'] %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_THAT(error(), HasSubstr("got it around what the tool says"));
  write("chat_template.jinja",  // shifted by a letter
        "{% for m in messages %}<{{ m.role }}>{{ m.content[0] }}{% generation %}{{ m.content[1:] if m.role == "
        "'assistant' }}{% endgeneration %}{{ m.content[1:] if m.role != 'assistant' }}{% endfor %}");
  EXPECT_THAT(error(), HasSubstr("got something else there"));
  write("chat_template.jinja",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}");
  EXPECT_THAT(error(), HasSubstr("nothing would be learned"));
  write("chat_template.jinja",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% generation %}</s>{% endgeneration %}{% endfor %}");
  EXPECT_THAT(error(), HasSubstr("got something else there"));
  write("chat_template.jinja",  // as one that reads lists of parts alone
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content if part.text %}{{ part.text }}{% endfor %}"
        "</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_THAT(error(), HasSubstr("got something else there"));
}

TEST_F(RenderedChats, Of_another_template_than_the_tokenizers_own_are_refused) {
  write("chat_template.jinja", kChatMl);
  EXPECT_THAT(error("qwen3"), AllOf(HasSubstr("chat_template = qwen3"), HasSubstr("chat_template.jinja'")));
  write("marked.jinja", kOwn);
  EXPECT_THAT(error(folder / "marked.jinja"), HasSubstr("marked.jinja to write what the template of"));
  write("with_tools.jinja", cat("{{ tools | tojson if tools }}", kChatMl));
  EXPECT_THAT(error(folder / "with_tools.jinja"), HasSubstr("where the other writes '<|im_start|>system\\nbe"));
  write("same.jinja", kOtherChatMl);
  EXPECT_EQ(found(folder / "same.jinja").family(), ChatFamily::kChatMl);
  write("chat_template.jinja", kOwn);
  EXPECT_THAT(error("chatml"), HasSubstr("'<user>Hi'"));
  EXPECT_EQ(found(folder / "marked.jinja").render(kChat).text, found().render(kChat).text);
}

TEST_F(RenderedChats, Have_the_reason_of_a_template_that_refuses_them) {
  write(
      "chat_template.jinja",
      cat("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}", kOwn));
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)found().render(R"([{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}])");
              }),
              AllOf(HasSubstr("System role not supported"), HasSubstr("chat_template.jinja'")));
}

TEST_F(RenderedChats, Of_published_revisions_are_those_of_families) {
  const auto cases = nlohmann::ordered_json::parse(test::run_python("tests/tokenizer/chat/jinja_oracle.py", {"24"}));
  std::map<std::string, std::string> families;
  for (const auto& of_template : cases) {
    const std::string name = of_template.at("name");
    if (!name.starts_with("qwen") && !name.starts_with("llama3")) continue;
    write("chat_template.jinja", of_template.at("template"));
    write("special_tokens_map.json", of_template.at("variables").dump());
    const ChatRenderer renderer = found();
    families[name] = renderer.family() ? renderer.name() : "";
    if (!renderer.family()) continue;
    for (const auto& each : of_template.at("chats")) {  // some have what the family leaves to the text
      const std::string messages = each.at("messages").dump(), tools = each.at("tools").dump();
      const ChatOptions options{.add_generation_prompt = each.at("add_generation_prompt").get<bool>()};
      if (each.at("text").is_null()) {
        EXPECT_THROW((void)renderer.render(messages, tools, options), ConfigError) << name << messages;
        continue;
      }
      try {
        EXPECT_EQ(renderer.render(messages, tools, options).text, each.at("text")) << name << messages;
      } catch (const ConfigError& error) {  // of the text it is not known what the assistant says
        EXPECT_THAT(error.what(), HasSubstr("{% generation %}")) << name << messages;
      }
    }
  }
  EXPECT_EQ(families.at("qwen3"), "qwen3");
  EXPECT_EQ(families.at("qwen2_5"), "qwen2.5");
  EXPECT_EQ(families.at("llama3"), "llama3");
  EXPECT_EQ(families.at("llama3_1"), "llama3.2");
  EXPECT_EQ(families.at("llama3_2"), "llama3.2");
  EXPECT_EQ(families.at("qwen3_training"), "");
  std::filesystem::copy_file(D9D_SOURCE_DIR "/tests/tokenizer/chat/templates/llama3__first.jinja",
                             folder / "chat_template.jinja", std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(found().family(), ChatFamily::kLlama30);
  write("special_tokens_map.json", R"({"bos_token": "<s>"})");
  EXPECT_FALSE(found().family());
}

}  // namespace
}  // namespace d9d::chat_renderer_test
