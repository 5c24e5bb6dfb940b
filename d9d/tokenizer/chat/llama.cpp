// The templates of Llama 3 and 3.2: https://huggingface.co/meta-llama.
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/tokenizer/chat/chat_writer.h"
#include "d9d/tokenizer/unicode/categories.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::detail {
namespace {

constexpr std::string_view kBegin = "<|begin_of_text|>";

// Whether Python's str.strip() removes the character: white space and the information separators.
bool is_python_space(char32_t code_point) {
  return (code_point >= 0x1C && code_point <= 0x1F) || (code_point_classes()[code_point] & kSpace) != 0;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    const CodePoint first = code_point_at(text, 0);
    if (!is_python_space(first.value)) break;
    text.remove_prefix(first.length);
  }
  while (!text.empty()) {
    const CodePoint last = code_point_before(text, text.size());
    if (!is_python_space(last.value)) break;
    text.remove_suffix(last.length);
  }
  return text;
}

void write_llama_message(ChatWriter& writer, std::string_view role, std::string_view content) {
  writer.write(cat("<|start_header_id|>", role, "<|end_header_id|>\n\n"));
  writer.say(role, cat(content, "<|eot_id|>"));
}

void check_contents(std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) {
    const auto invalid = invalid_utf8_at(message.content);
    D9D_CHECK(!invalid, ConfigError, "[tokenizer::chat] expected UTF-8, got an invalid byte at position ", *invalid,
              " of a message of ", message.role, ". Correct the text.");
  }
}

}  // namespace

void write_llama3(ChatWriter& writer, std::span<const ChatMessage> messages) {
  check_contents(messages);
  writer.write(kBegin);
  for (const ChatMessage& message : messages) write_llama_message(writer, message.role, trimmed(message.content));
}

void write_llama32(ChatWriter& writer, std::span<const ChatMessage> messages, std::string_view date) {
  check_contents(messages);
  writer.write(kBegin);
  const bool has_system = messages.front().role == "system";
  write_llama_message(writer, "system",
                      cat("Cutting Knowledge Date: December 2023\nToday Date: ", date, "\n\n",
                          has_system ? trimmed(messages.front().content) : ""));
  for (const ChatMessage& message : messages.subspan(has_system ? 1 : 0)) {
    if (message.role == "tool" || message.role == "ipython") {  // the template renders the text as a JSON string
      write_llama_message(writer, "ipython", nlohmann::json(message.content).dump());
    } else {
      write_llama_message(writer, message.role, trimmed(message.content));
    }
  }
}

}  // namespace d9d::detail
