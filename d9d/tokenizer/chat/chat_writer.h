// Writes the text of a conversation and records the ranges that the assistant says.
#pragma once

#include <span>
#include <string_view>

#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d::detail {

class ChatWriter {
 public:
  void write(std::string_view text) { chat_.text.append(text); }
  // Writes text that `role` says, within one message.
  void say(std::string_view role, std::string_view text) {
    const std::size_t begin = chat_.text.size();
    write(text);
    if (role == "assistant") chat_.assistant.push_back({begin, chat_.text.size()});
  }
  [[nodiscard]] RenderedChat finish() { return std::move(chat_); }

 private:
  RenderedChat chat_;
};

void write_chatml(ChatWriter& writer, std::span<const ChatMessage> messages);
void write_qwen2(ChatWriter& writer, std::span<const ChatMessage> messages);
void write_qwen25(ChatWriter& writer, std::span<const ChatMessage> messages);
void write_qwen3(ChatWriter& writer, std::span<const ChatMessage> messages);
void write_llama3(ChatWriter& writer, std::span<const ChatMessage> messages);
void write_llama32(ChatWriter& writer, std::span<const ChatMessage> messages, std::string_view date);

}  // namespace d9d::detail
