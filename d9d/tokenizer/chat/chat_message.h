// A message of a conversation, and conversations from JSON: rows of "messages".
//
// Example
//   const auto messages = d9d::read_chat_messages(row.at("messages"), "chats.jsonl:7: messages");
//   // [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool", ...
  std::string content;
  std::optional<std::string> reasoning_content = {};  // what the assistant thought, for templates that show it apart
};

// `messages` is a list of objects with "role", "content" and perhaps "reasoning_content". `where` begins the messages
// of ConfigErrors: calls of tools, and content that is no text, are refused. Other keys ("id", "name", "weight") are in
// no template: they are left alone, and those with a value are added to `other_keys`.
[[nodiscard]] std::vector<ChatMessage> read_chat_messages(const nlohmann::json& messages, const std::string& where,
                                                          std::set<std::string>* other_keys = nullptr);

}  // namespace d9d
