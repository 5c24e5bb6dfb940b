#include "d9d/tokenizer/chat/chat_message.h"

#include <cstddef>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d {
namespace {

const std::string& text_of(const nlohmann::json& value, const std::string& place) {
  D9D_CHECK(!value.is_null(), ConfigError, place,
            "expected a text, got null: a message that has none, such as one with calls of tools only, is not built. "
            "Write the text, or leave the conversation out.");
  D9D_CHECK(value.is_string(), ConfigError, place, "expected a text, got ", value.type_name(),
            ". Messages with images or parts are not built.");
  return value.get_ref<const std::string&>();
}

}  // namespace

std::vector<ChatMessage> read_chat_messages(const nlohmann::json& messages, const std::string& where) {
  D9D_CHECK(messages.is_array() && !messages.empty(), ConfigError, where, ": expected a list of messages, got ",
            messages.is_array() ? "an empty one" : messages.type_name(),
            ". Write [{\"role\": ..., \"content\": ...}, ...].");
  std::vector<ChatMessage> result;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string place = cat(where, ".", i);
    D9D_CHECK(!(messages[i].is_object() && messages[i].contains("from") && messages[i].contains("value")), ConfigError,
              place,
              ": expected an object with \"role\" and \"content\", got one of ShareGPT with \"from\" and \"value\". ",
              "Write role for from, content for value, user for human, and assistant for gpt.");
    D9D_CHECK(messages[i].is_object() && messages[i].contains("role") && messages[i].contains("content"), ConfigError,
              place, ": expected an object with \"role\" and \"content\", got ", messages[i].type_name(),
              " without them.");
    ChatMessage& message = result.emplace_back();
    for (const auto& [key, value] : messages[i].items()) {
      const std::string key_place = cat(place, ".", key, ": ");
      if (key == "role") {
        message.role = text_of(value, key_place);
      } else if (key == "content") {
        message.content = text_of(value, key_place);
      } else if (key == "reasoning_content" && !value.is_null()) {
        message.reasoning_content = text_of(value, key_place);
      } else {
        D9D_CHECK(value.is_null(), ConfigError, key_place, "expected no such key: only role, content and ",
                  "reasoning_content are built. Remove it.");
      }
    }
  }
  return result;
}

}  // namespace d9d
