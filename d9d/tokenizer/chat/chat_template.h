// Renders conversations as the texts that published chat models were trained on, and marks the parts that the assistant
// says. The text equals that of transformers' apply_chat_template without tools.
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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/base/enum_names.h"
#include "d9d/tokenizer/chat/chat_message.h"

namespace d9d {

enum class ChatFamily : std::uint8_t {
  kChatMl,   // any role, nothing added
  kQwen20,   // ChatML; "You are a helpful assistant." unless the first message is the system's
  kQwen25,   // another default system message; tool responses are messages of the user
  kQwen3,    // reasoning of answers before the last question is omitted
  kLlama30,  // Llama 3
  kLlama32,  // Llama 3.1 and 3.2: always a system message, with dates
};
constexpr auto enum_names(ChatFamily) {
  return std::to_array<EnumName<ChatFamily>>({{ChatFamily::kChatMl, "chatml"},
                                              {ChatFamily::kQwen20, "qwen2"},
                                              {ChatFamily::kQwen25, "qwen2.5"},
                                              {ChatFamily::kQwen3, "qwen3"},
                                              {ChatFamily::kLlama30, "llama3"},
                                              {ChatFamily::kLlama32, "llama3.2"}});
}

// The special tokens that a template writes around messages. The tokenizer must have all of them.
[[nodiscard]] std::span<const std::string_view> special_tokens(ChatFamily family);
// The special token that ends a message, and so the assistant's answer.
[[nodiscard]] std::string_view end_of_message(ChatFamily family);

// The family of which a published Jinja template equals `text`, except for white space at the end and the notation of
// line ends. Other revisions are known by what they write (chat_renderer.h).
[[nodiscard]] std::optional<ChatFamily> published_family_of(std::string_view text);

struct ChatOptions {
  bool add_generation_prompt = false;  // appends the header of the assistant's next message
  bool enable_thinking = true;         // Qwen 3: false adds an empty reasoning block to that header
  std::string date = "26 Jul 2024";    // Llama 3.2: "Today Date"; transformers writes the current date
};

struct TextRange {
  std::size_t begin = 0;  // bytes
  std::size_t end = 0;    // exclusive

  friend bool operator==(const TextRange&, const TextRange&) = default;
};

struct RenderedChat {
  // Encode it with add_special_tokens = false: it contains the special tokens already.
  std::string text;
  // The range of each assistant message, including the token that ends it but not its header, which belongs to the
  // prompt.
  std::vector<TextRange> assistant;
};

// Renders a conversation. Messages with roles that the template ignores are omitted from the text. Throws ConfigError
// if there is no message.
[[nodiscard]] RenderedChat render_chat(ChatFamily family, std::span<const ChatMessage> messages,
                                       const ChatOptions& options = {});

}  // namespace d9d
