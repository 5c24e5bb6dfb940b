#include "d9d/tokenizer/chat/jinja/jinja_template.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::jinja_template_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kOwn =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
constexpr const char* kChat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
constexpr const char* kTwoAnswers = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                        {"role": "user", "content": "ü"}, {"role": "assistant", "content": "d"}])";

std::vector<std::string> said(const RenderedChat& chat) {
  std::vector<std::string> all;
  for (const auto& [begin, end] : chat.assistant) all.push_back(chat.text.substr(begin, end - begin));
  return all;
}

TEST(JinjaTemplates, Have_answers_between_marks_wherever_these_stand) {
  const auto text_and_answers = [&](const std::string& chat_template) {
    const JinjaTemplate jinja({.text = chat_template, .place = "own"});
    EXPECT_TRUE(jinja.marks_answers()) << chat_template;
    const RenderedChat chat = jinja.render(kTwoAnswers, "");
    return std::pair(chat.text, said(chat));
  };
  const auto of = [](const std::string& answer) {
    return cat("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}", answer,
               "{% endif %}{% endfor %}");
  };
  using Said = std::vector<std::string>;
  EXPECT_EQ(text_and_answers(of("{%+ generation %}<{% generation %}{{ m.content }}{% endgeneration %}>"
                                "{% endgeneration %}{% generation %}{% endgeneration %}")),
            std::pair(std::string("a<b>ü<d>"), Said{"<b>", "<d>"}));
  EXPECT_EQ(text_and_answers(cat("{% macro say(m) %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endmacro %}",
                                 of("{{ say(m) }}"))),
            std::pair(std::string("a<b>ü<d>"), Said{"b", "d"}));
  const JinjaTemplate changed({.text = of("{% filter upper %}{% generation %}{{ m.content }}{% endgeneration %}"
                                          "{% endfilter %}"),
                               .place = "own"});
  EXPECT_EQ(changed.render(kTwoAnswers, "", {}, /*answers=*/false).text, "aBüD");
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)changed.render(kTwoAnswers, ""); }),
              HasSubstr("whose text the chat template changes"));
  EXPECT_FALSE(JinjaTemplate({.text = "{# {% generation %} #}{{ '{' }}{#", .place = "own"}).marks_answers());
}

TEST(JinjaTemplates, Name_what_is_no_conversation) {
  const JinjaTemplate own({.text = kOwn, .place = "own"});
  const auto refusal = [&](const char* messages, const char* tools) {
    return test::message_of<ConfigError>([&] { (void)own.render(messages, tools); });
  };
  EXPECT_THAT(refusal("[]", ""), HasSubstr("messages: expected a list of messages, got []"));
  EXPECT_THAT(refusal("null", ""), HasSubstr("messages: expected a list of messages, got null"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}, "b"])", ""), HasSubstr("messages.1: expected an object"));
  EXPECT_THAT(refusal(R"([{"from": "human", "value": "a"}])", ""), HasSubstr("as ShareGPT has them"));
  EXPECT_THAT(refusal(kChat, R"({"name": "f"})"), HasSubstr("tools: expected a list of JSON schemas"));
}

TEST(JinjaTemplates, Do_not_leave_the_sandbox) {
  for (const char* const way_out :
       {"{{ ''.__class__.__mro__ }}", "{{ dict.mro() }}", "{{ dict.__base__.__subclasses__() }}",
        "{{ strftime_now.__self__.year }}", "{{ raise_exception.__globals__.json }}", "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os }}", "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "{{ ('' | attr('__class__')).mro }}",
        "{{ '{0.__class__.mro}'.format(1) }}", "{% include '/etc/passwd' %}", "{{ range(1000000000) | list }}",
        "{{ 'a' * 10000000000 }}"}) {
    const JinjaTemplate jinja({.text = way_out, .place = "own"});
    EXPECT_THROW((void)jinja.render(kChat, "", {}, /*answers=*/false), ConfigError) << way_out;
    EXPECT_THROW((void)jinja.render(kChat, "", {}, /*answers=*/false), ConfigError) << way_out;  // by the same process
  }
}

TEST(JinjaTemplates, Say_what_is_wrong_with_the_Python) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d" / "unfit_python";
  std::filesystem::create_directories(folder / "jinja2");
  const auto failure = [&](const std::string& name, const std::string& program) {
    std::ofstream(folder / name) << "#!/bin/sh\n" << program << "\n";
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    const JinjaTemplate jinja({.text = kOwn, .place = "own", .python = folder / name});
    return test::message_of<IoError>([&] { (void)jinja.render(kChat, ""); });
  };
  EXPECT_THAT(failure("none", "exit 3"), AllOf(HasSubstr("package jinja2, 3.1.6 or later"), HasSubstr("exit code 3"),
                                               HasSubstr("key \"python\"")));
  EXPECT_THAT(failure("talks", "echo '{\"ready\": true}'; echo hello; cat > /dev/null"),
              AllOf(HasSubstr("got 'hello'"), HasSubstr("print nothing")));
  EXPECT_THAT(failure("ends", "echo '{\"ready\": true}'; read a; kill -9 $$"), HasSubstr("killed by signal 9"));
  std::ofstream(folder / "jinja2/__init__.py") << "__version__ = '3.1.5'";  // whose sandbox has known ways out
  for (const char* const module : {"jinja2/ext.py", "jinja2/sandbox.py"}) std::ofstream(folder / module) << "";
  EXPECT_THAT(
      failure("old", cat("PYTHONPATH='", folder.string(), "' exec '", D9D_SOURCE_DIR, "/.venv/bin/python' \"$@\"")),
      HasSubstr("exit code 1"));
}

// The originals and their marked twins that trl ships, with tools, calls and reasoning.
TEST(PublishedTemplates, Write_and_mark_as_transformers_does) {
  const auto cases = nlohmann::ordered_json::parse(test::run_python("tests/tokenizer/chat/jinja_oracle.py", {"4"}));
  std::int64_t num_equal = 0, num_marked = 0;
  for (const auto& of_template : cases) {
    const std::string name = of_template.at("name");
    const JinjaTemplate jinja(
        {.text = of_template.at("template"), .place = name, .variables = of_template.at("variables")});
    for (const auto& each : of_template.at("chats")) {
      const std::string messages = each.at("messages").dump(), tools = each.at("tools").dump();
      const ChatOptions options{.add_generation_prompt = each.at("add_generation_prompt").get<bool>()};
      if (each.at("text").is_null()) {
        EXPECT_THROW((void)jinja.render(messages, tools, options, /*answers=*/false), ConfigError) << name << messages;
        continue;
      }
      EXPECT_EQ(jinja.render(messages, tools, options, /*answers=*/false).text, each.at("text")) << name << messages;
      ++num_equal;
      if (each.at("answers").is_null()) continue;
      const RenderedChat chat = jinja.render(messages, tools, options);
      EXPECT_EQ(chat.text, each.at("text")) << name << messages;
      nlohmann::ordered_json answers = nlohmann::ordered_json::array();
      for (const auto& [begin, end] : chat.assistant) answers.push_back({begin, end});
      EXPECT_EQ(answers, each.at("answers")) << name << messages;
      ++num_marked;
    }
  }
  EXPECT_GT(num_equal, 200);
  EXPECT_GT(num_marked, 80);
}

}  // namespace
}  // namespace d9d::jinja_template_test
