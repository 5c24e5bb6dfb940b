#include "d9d/tokenizer/chat/chat_message.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::array kReasoningKeys = {"reasoning_content", "thinking", "reasoning"};

const std::string& text_of(const nlohmann::json& value, const std::string& place) {
  D9D_CHECK(value.is_string(), ConfigError, place, "expected a text, got ", value.type_name(),
            value.is_null() ? ", as of a message that only calls tools" : ", as of images and parts",
            ". Write the text, or put chat_template.jinja beside the tokenizer, which may render it.");
  return value.get_ref<const std::string&>();
}

void check_message(const nlohmann::json& message, const std::string& place) {
  const bool is_object = message.is_object();
  D9D_CHECK(!is_object || !message.contains("from") || !message.contains("value"), ConfigError, place,
            ": expected an object with \"role\" and \"content\", got one with \"from\" and \"value\", as ShareGPT has "
            "them. Rename the keys, and the roles: human is user, gpt is assistant.");
  D9D_CHECK(is_object && message.contains("role") && message.contains("content"), ConfigError, place,
            ": expected an object with \"role\" and \"content\", got ", message.type_name(), " without them.");
}

// Keys of tool calls, which only Jinja templates render.
bool is_call(const std::string& key) { return key == "tool_calls" || key == "function_call"; }

}  // namespace

bool is_reasoning(std::string_view key) { return std::ranges::find(kReasoningKeys, key) != kReasoningKeys.end(); }

std::vector<ChatMessage> read_chat_messages(const nlohmann::json& messages, const std::string& where,
                                            std::set<std::string>* other_keys) {
  D9D_CHECK(messages.is_array() && !messages.empty(), ConfigError, where, ": expected a list of messages, got ",
            messages.is_array() ? "an empty one" : messages.type_name(),
            ". Write [{\"role\": ..., \"content\": ...}, ...].");
  std::vector<ChatMessage> result;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string place = cat(where, ".", i);
    check_message(messages[i], place);
    ChatMessage& message = result.emplace_back();
    for (const auto& [key, value] : messages[i].items()) {
      const std::string key_place = cat(place, ".", key, ": ");
      if (key == "role") {
        message.role = text_of(value, key_place);
      } else if (key == "content") {
        message.content = text_of(value, key_place);
      } else if (is_call(key)) {
        D9D_CHECK(value.empty(), ConfigError, key_place,
                  "expected no calls of tools, got some. Put chat_template.jinja beside the tokenizer, which renders "
                  "them.");
      } else if (other_keys != nullptr && !is_reasoning(key) && !value.is_null()) {
        other_keys->insert(key);
      }
    }
    for (const char* const key : kReasoningKeys) {
      if (message.reasoning_content || !messages[i].contains(key) || messages[i][key].is_null()) continue;
      message.reasoning_content = text_of(messages[i][key], cat(place, ".", key, ": "));
    }
  }
  return result;
}

}  // namespace d9d
