// Conversations as the texts that published chat models were trained on: what transformers' apply_chat_template
// renders, without tools, and which part of it the assistant says.
//
// Example
//   const std::vector<d9d::ChatMessage> messages = {{"user", "Hi"}, {"assistant", "Hello!"}};
//   const d9d::RenderedChat chat = d9d::render_chat(d9d::ChatFamily::kChatMl, messages);
//   // chat.text:      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n
//   // chat.assistant: one range, Hello!<|im_end|>
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/base/enum_names.h"
#include "d9d/tokenizer/chat/chat_message.h"

namespace d9d {

enum class ChatFamily : std::uint8_t {
  kChatMl,   // any role, nothing added
  kQwen2,    // ChatML; "You are a helpful assistant." unless the first message is the system's
  kQwen25,   // another default system message; answers of tools as the user's
  kQwen3,    // what the assistant thought before earlier questions is left out
  kLlama3,   // Llama 3
  kLlama32,  // Llama 3.1 and 3.2: always a system message, with dates
};
constexpr auto enum_names(ChatFamily) {
  return std::to_array<EnumName<ChatFamily>>({{ChatFamily::kChatMl, "chatml"},
                                              {ChatFamily::kQwen2, "qwen2"},
                                              {ChatFamily::kQwen25, "qwen2.5"},
                                              {ChatFamily::kQwen3, "qwen3"},
                                              {ChatFamily::kLlama3, "llama3"},
                                              {ChatFamily::kLlama32, "llama3.2"}});
}

// The tokens that a template writes around messages. A tokenizer that lacks one was not made for the template.
[[nodiscard]] std::span<const std::string_view> special_tokens(ChatFamily family);
// The one of these that ends a message: where the assistant's answer is over.
[[nodiscard]] std::string_view end_of_message(ChatFamily family);

// The family whose published template, in Jinja, `text` is, letter by letter but for white space at its end and the way
// in which line ends are written. Another one is refused with ConfigError, which begins with `where`: name the family
// instead.
[[nodiscard]] ChatFamily chat_family_of(std::string_view text, const std::string& where);

struct ChatOptions {
  bool add_generation_prompt = false;  // ends with the head of the assistant's next message
  bool enable_thinking = true;         // Qwen 3: false puts an empty thought into the head of the next message
  std::string date = "26 Jul 2024";    // Llama 3.2: "Today Date"; transformers writes the day on which it runs
};

struct TextRange {
  std::size_t begin = 0;  // bytes
  std::size_t end = 0;    // exclusive

  friend bool operator==(const TextRange&, const TextRange&) = default;
};

struct RenderedChat {
  // Encode it without the file's special tokens: those of the template are in it.
  std::string text;
  // What the assistant says in each of its messages, with the token that ends it; not the head, which the prompt has.
  std::vector<TextRange> assistant;
};

// Throws ConfigError for no messages. Roles that a template passes over leave nothing in the text.
[[nodiscard]] RenderedChat render_chat(ChatFamily family, std::span<const ChatMessage> messages,
                                       const ChatOptions& options = {});

}  // namespace d9d
