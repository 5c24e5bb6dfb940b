#include "d9d/tokenizer/chat/probe_conversations.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

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
    R"([{"role": "user", "name": "Ann", "content": "one"}, {"role": "user", "content": "two"},
        {"role": "assistant", "name": "Bob", "content": "three"}, {"role": "assistant", "content": ""},
        {"role": "user", "content": ""}, {"role": "assistant", "content": "four <think>", "thinking": "so"}])",
};

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "f", "description": "does",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "one"}}}}}])";
constexpr const char* kCalls = R"([{"role": "system", "content": "be"}, {"role": "user", "content": "one"},
    {"role": "assistant", "content": "called", "tool_calls":
        [{"id": "c12345678", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "name": "f", "tool_call_id": "c12345678", "content": "two"},
    {"role": "assistant", "content": "three"}])";

// The text, or "" for a conversation that is refused.
std::string text_of(const ChatRenderer& renderer, std::string_view conversation, std::string_view tools,
                    const ChatOptions& options) {
  try {
    return renderer.render_text(conversation, tools, options);
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
  std::vector<std::pair<std::string_view, std::string_view>> probes;  // messages and tools
  for (const std::string_view conversation : kConversations) probes.emplace_back(conversation, "");
  probes.emplace_back(kCalls, kTools);
  for (const auto& [conversation, tools] : probes) {
    for (const bool prompts : {false, true}) {
      const ChatOptions options{.add_generation_prompt = prompts};
      const std::string mine = text_of(own, conversation, tools, options);
      const std::string theirs = text_of(other, conversation, tools, options);
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
  constexpr const char* kCalled = R"({"role": "user", "content": "firstasked"}, {"role": "assistant",
      "content": "called", "tool_calls": [{"id": "c12345678", "type": "function",
                                           "function": {"name": "f", "arguments": {"a": 1}}}]},
      {"role": "tool", "name": "f", "tool_call_id": "c12345678", "content": "toolsays"},
      {"role": "assistant", "content": "firstanswered"},)";
  RenderedChat chat;
  for (const std::string& before :
       {cat(kSystem, kCalled), std::string(kCalled), cat(kSystem, kFirst), std::string(kFirst), std::string()}) {
    try {
      chat = jinja.render(cat("[", before, R"({"role": "user", "content": "lastasked"},
                                              {"role": "assistant", "content": "lastanswered"}])"),
                          /*tools=*/{});
      break;
    } catch (const ConfigError&) {  // without calls then, a system message, a first question, or not at all
    }
  }
  if (chat.text.empty()) return;
  std::string said;
  for (const TextRange& range : chat.assistant) said += chat.text.substr(range.begin, range.end - range.begin) + "\n";
  for (const auto& [prompt, role] : {std::pair("systemsays", "system"), std::pair("firstasked", "user"),
                                     std::pair("lastasked", "user"), std::pair("toolsays", "tool")}) {
    D9D_CHECK(said.find(prompt) == std::string::npos, ConfigError,
              "[tokenizer::chat] expected {% generation %} around what the assistant says in the chat template of '",
              jinja.source().place, "', got it around what the ", role,
              " says, which would be learned. Correct the template.");
  }
  D9D_CHECK(said.find("lastanswered") != std::string::npos, ConfigError,
            "[tokenizer::chat] expected what the assistant says between {% generation %} and {% endgeneration %}, or "
            "before the next message, in the text of the chat template of '",
            jinja.source().place, "', got ",
            said.find_first_not_of('\n') == std::string::npos ? "none of it there, so that nothing would be learned"
                                                              : "something else there, which would be learned",
            ". Correct the template.");
}

}  // namespace d9d::detail
