#include "d9d/tokenizer/chat/chat_template.h"

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/tokenizer/chat/chat_writer.h"

namespace d9d {
namespace {

struct PublishedTemplate {
  std::size_t size;  // bytes of normalized()
  std::uint64_t hash;
  ChatFamily family;
};

// The templates in tests/tokenizer/chat/templates, whose README names their sources, and those of ChatML and Qwen 2.
constexpr PublishedTemplate kPublished[] = {
    {196, 0x88bf4138d5c826f0, ChatFamily::kChatMl},
    {328, 0x8a87094e0e1e24c5, ChatFamily::kQwen20},
    {2474, 0x11d394755cef9355, ChatFamily::kQwen25},
    {4071, 0xabb815b933a4981a, ChatFamily::kQwen3},  // released with the models, April 2025
    {4123, 0x521e84e1430005c3, ChatFamily::kQwen3},  // later version: handles content that is not text
    {389, 0x0e60067a5537498e, ChatFamily::kLlama30},
    {4583, 0x4fd30286bc0da17c, ChatFamily::kLlama32},  // of Llama 3.1, which renders text messages in the same way
    {3800, 0x1a6da26e3aef1b34, ChatFamily::kLlama32},
};

// Removes white space at the end, and replaces the escape \n by a line end: within string literals Jinja treats both
// alike, and one template is published in both forms.
std::string normalized(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text.substr(i, 2) == "\\n", is_carriage = text.substr(i, 2) == "\r\n";
    result += is_escape || is_carriage ? '\n' : text[i];
    if (is_escape || is_carriage) ++i;
  }
  return result;
}

bool is_llama(ChatFamily family) { return family == ChatFamily::kLlama30 || family == ChatFamily::kLlama32; }

void write_messages(detail::ChatWriter& writer, ChatFamily family, std::span<const ChatMessage> messages,
                    const ChatOptions& options) {
  switch (family) {
    case ChatFamily::kChatMl:
      return detail::write_chatml(writer, messages);
    case ChatFamily::kQwen20:
      return detail::write_qwen2(writer, messages);
    case ChatFamily::kQwen25:
      return detail::write_qwen25(writer, messages);
    case ChatFamily::kQwen3:
      return detail::write_qwen3(writer, messages);
    case ChatFamily::kLlama30:
      return detail::write_llama3(writer, messages);
    case ChatFamily::kLlama32:
      return detail::write_llama32(writer, messages, options.date);
  }
}

std::string_view generation_prompt(ChatFamily family, const ChatOptions& options) {
  if (is_llama(family)) {
    return "<|start_header_id|>assistant<|end_header_id|>\n\n";
  }
  if (family == ChatFamily::kQwen3 && !options.enable_thinking) {
    return "<|im_start|>assistant\n<think>\n\n</think>\n\n";
  }
  return "<|im_start|>assistant\n";
}

}  // namespace

std::span<const std::string_view> special_tokens(ChatFamily family) {
  static constexpr std::array<std::string_view, 2> kOfChatMl = {"<|im_start|>", "<|im_end|>"};
  static constexpr std::array<std::string_view, 4> kOfLlama = {"<|begin_of_text|>", "<|start_header_id|>",
                                                               "<|end_header_id|>", "<|eot_id|>"};
  if (is_llama(family)) return kOfLlama;
  return kOfChatMl;
}

std::string_view end_of_message(ChatFamily family) { return special_tokens(family).back(); }

std::optional<ChatFamily> published_family_of(std::string_view text) {
  const std::string own = normalized(text);
  const std::uint64_t hash = fnv1a(own);
  for (const PublishedTemplate& published : kPublished) {
    if (published.size == own.size() && published.hash == hash) return published.family;
  }
  return std::nullopt;
}

RenderedChat render_chat(ChatFamily family, std::span<const ChatMessage> messages, const ChatOptions& options) {
  D9D_CHECK(!messages.empty(), ConfigError,
            "[tokenizer::chat] expected a conversation of at least one message, got none.");
  detail::ChatWriter writer;
  write_messages(writer, family, messages, options);
  if (options.add_generation_prompt) writer.write(generation_prompt(family, options));
  return writer.finish();
}

}  // namespace d9d
