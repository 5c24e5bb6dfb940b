#include "d9d/tokenizer/chat/chat_template.h"

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/tokenizer/chat/chat_writer.h"

namespace d9d {
namespace {

struct PublishedTemplate {
  std::size_t size;  // bytes, without white space at the end
  std::uint64_t hash;
  ChatFamily family;
};

constexpr PublishedTemplate kPublished[] = {
    {199, 0xa41d6bae9b9141bc, ChatFamily::kChatMl},  {333, 0x75e88977b2787cd7, ChatFamily::kQwen2},
    {2506, 0xe642ce246d7f2e3d, ChatFamily::kQwen25}, {4116, 0x2bfdb7aa9754484e, ChatFamily::kQwen3},
    {393, 0x32844fd43eab01d2, ChatFamily::kLlama3},  {3826, 0x368f4c34b8554414, ChatFamily::kLlama32},
};

bool is_llama(ChatFamily family) { return family == ChatFamily::kLlama3 || family == ChatFamily::kLlama32; }

void write_messages(detail::ChatWriter& writer, ChatFamily family, std::span<const ChatMessage> messages,
                    const ChatOptions& options) {
  switch (family) {
    case ChatFamily::kChatMl:
      return detail::write_chatml(writer, messages);
    case ChatFamily::kQwen2:
      return detail::write_qwen2(writer, messages);
    case ChatFamily::kQwen25:
      return detail::write_qwen25(writer, messages);
    case ChatFamily::kQwen3:
      return detail::write_qwen3(writer, messages);
    case ChatFamily::kLlama3:
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

ChatFamily chat_family_of(std::string_view text, const std::string& where) {
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  const std::uint64_t hash = fnv1a(text);
  for (const PublishedTemplate& published : kPublished) {
    if (published.size == text.size() && published.hash == hash) return published.family;
  }
  std::string names;
  for (const auto& entry : enum_names(ChatFamily{})) names += cat(names.empty() ? "" : ", ", entry.name);
  throw ConfigError(
      cat(where, "expected a chat template of a published family (", names, "), got '", text.substr(0, 60),
          "...', whose texts d9d has no code for. If it renders messages as one of these does, name that family."));
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
