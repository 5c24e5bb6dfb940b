// The message of a conversation, and a reader of conversations in JSON, such as values of the key "messages".
//
// Example
//   const auto messages = d9d::read_chat_messages(row.at("messages"), "chats.jsonl:7: messages");
//   // [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool", ...
  std::string content;
  std::optional<std::string> reasoning_content = {};  // the assistant's reasoning, if it is kept separately
};

// Whether a key has the assistant's reasoning: "reasoning_content", "thinking" or "reasoning".
[[nodiscard]] bool is_reasoning(std::string_view key);

// Reads a conversation: `messages` is a list of objects with "role", "content" and optionally the reasoning, of whose
// keys the first that is_reasoning() names counts. Throws ConfigError, which begins with `where`, for tool calls and
// for content that is not text. Other keys ("id", "name", "weight") are used by no family and are ignored; those with a
// value are added to `other_keys`.
[[nodiscard]] std::vector<ChatMessage> read_chat_messages(const nlohmann::json& messages, const std::string& where,
                                                          std::set<std::string>* other_keys = nullptr);

}  // namespace d9d
