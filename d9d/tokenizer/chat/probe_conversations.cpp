#include "d9d/tokenizer/chat/probe_conversations.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "d9d/base/check.h"

namespace d9d::detail {
namespace {

constexpr std::array kConversations = {
    R"([{"role": "user", "content": "Hi"}])",
    R"([{"role": "user", "content": " one\n"}, {"role": "assistant", "content": " two\n"},
        {"role": "user", "content": "three"}])",
    R"([{"role": "system", "content": " be\n"}, {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"}])",
    R"([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two", "reasoning_content": "so"},
        {"role": "user", "content": "three"}, {"role": "assistant", "content": "four", "reasoning_content": "thus"}])",
    R"([{"role": "user", "content": "one"}, {"role": "assistant", "content": "<think>\nso\n</think>\n\ntwo"},
        {"role": "tool", "content": "data"}, {"role": "tool", "content": "more"},
        {"role": "assistant", "content": "<think>\nthus\n</think>\n\nthree"}])",
};

// The text, or "" for a conversation that is refused.
std::string text_of(const ChatRenderer& renderer, std::string_view conversation, const ChatOptions& options) {
  try {
    return renderer.family() ? renderer.render(conversation, /*tools=*/{}, options).text
                             : renderer.jinja()->render(conversation, /*tools=*/{}, options, /*answers=*/false).text;
  } catch (const ConfigError&) {
    return {};
  }
}

// From the first byte that differs, on one line.
std::string excerpt(std::string_view text, std::size_t from) {
  const std::size_t begin = from < 20 ? 0 : from - 20;
  std::string part(text.substr(begin, 60));
  std::string line;
  for (const char c : part) line += c == '\n' ? "\\n" : std::string(1, c);
  return text.empty() ? "a refusal" : cat("'", line, "'");
}

}  // namespace

std::optional<std::string> first_difference(const ChatRenderer& own, const ChatRenderer& other) {
  for (const std::string_view conversation : kConversations) {
    for (const bool prompts : {false, true}) {
      const ChatOptions options{.add_generation_prompt = prompts};
      const std::string mine = text_of(own, conversation, options), theirs = text_of(other, conversation, options);
      if (mine == theirs) continue;
      const auto from = static_cast<std::size_t>(std::ranges::mismatch(mine, theirs).in1 - mine.begin());
      return cat(excerpt(mine, from), " where the other writes ", excerpt(theirs, from));
    }
  }
  return std::nullopt;
}

void check_answers(const JinjaTemplate& jinja) {
  constexpr const char* kFirst = R"({"role": "user", "content": "firstasked"},
                                    {"role": "assistant", "content": "firstanswered"},)";
  constexpr const char* kSystem = R"({"role": "system", "content": "systemsays"},)";
  RenderedChat chat;
  for (const std::string& before : {cat(kSystem, kFirst), std::string(kFirst), std::string()}) {
    try {
      chat = jinja.render(cat("[", before, R"({"role": "user", "content": "lastasked"},
                                              {"role": "assistant", "content": "lastanswered"}])"),
                          /*tools=*/{});
      break;
    } catch (const ConfigError&) {  // without a system message then, without a first question, or not at all
    }
  }
  if (chat.text.empty()) return;
  std::string said;
  for (const TextRange& range : chat.assistant) said += chat.text.substr(range.begin, range.end - range.begin) + "\n";
  for (const std::string_view prompt : {"systemsays", "firstasked", "lastasked"}) {
    D9D_CHECK(said.find(prompt) == std::string::npos, ConfigError,
              "[tokenizer::chat] expected {% generation %} around what the assistant says in the chat template of '",
              jinja.source().place, "', got it around what the ", prompt == "systemsays" ? "system" : "user",
              " says, which would be learned. Correct the template.");
  }
  D9D_CHECK(said.find("lastanswered") != std::string::npos, ConfigError,
            "[tokenizer::chat] expected what the assistant says between {% generation %} and {% endgeneration %}, or "
            "before the next message, in the text of the chat template of '",
            jinja.source().place, "', got none of it there, so that nothing would be learned. Correct the template.");
}

}  // namespace d9d::detail
