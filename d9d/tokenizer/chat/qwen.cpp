// ChatML and the templates of Qwen: https://huggingface.co/Qwen.
#include <algorithm>
#include <string>

#include "d9d/base/check.h"
#include "d9d/tokenizer/chat/chat_writer.h"

namespace d9d::detail {
namespace {

void write_chatml_message(ChatWriter& writer, std::string_view role, std::string_view content) {
  writer.write(cat("<|im_start|>", role, "\n"));
  writer.say(role, cat(content, "<|im_end|>"));
  writer.write("\n");
}

bool begins_with_system(std::span<const ChatMessage> messages) { return messages.front().role == "system"; }

bool is_tool(std::span<const ChatMessage> messages, std::size_t i) {
  return i < messages.size() && messages[i].role == "tool";
}

// Consecutive tool responses form one message of the user.
void write_tool_answer(ChatWriter& writer, std::span<const ChatMessage> messages, std::size_t i) {
  if (i == 0 || !is_tool(messages, i - 1)) writer.write("<|im_start|>user");
  writer.write(cat("\n<tool_response>\n", messages[i].content, "\n</tool_response>"));
  if (!is_tool(messages, i + 1)) writer.write("<|im_end|>\n");
}

std::string_view without_first_lines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}
std::string_view without_last_lines(std::string_view text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

std::string_view behind_last(std::string_view text, std::string_view mark) {
  const std::size_t at = text.rfind(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

// Index of the user's last question. Reasoning of the assistant before it is omitted. Tool responses are not questions.
std::size_t last_question(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const auto& [role, content, reasoning] = messages[i];
    const bool answers = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (role == "user" && !answers) return i;
  }
  return messages.size() - 1;
}

struct Thought {
  std::string_view reasoning;
  std::string_view content;
};

Thought thought_of(const ChatMessage& message) {
  constexpr std::string_view kEnd = "</think>";
  const std::string_view content = message.content;
  if (message.reasoning_content) return {*message.reasoning_content, content};
  const std::size_t end = content.find(kEnd);
  if (end == std::string_view::npos) return {"", content};
  const std::string_view before = without_last_lines(content.substr(0, end));
  return {without_first_lines(behind_last(before, "<think>")), without_first_lines(behind_last(content, kEnd))};
}

}  // namespace

void write_chatml(ChatWriter& writer, std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) write_chatml_message(writer, message.role, message.content);
}

void write_qwen2(ChatWriter& writer, std::span<const ChatMessage> messages) {
  if (!begins_with_system(messages)) write_chatml_message(writer, "system", "You are a helpful assistant.");
  write_chatml(writer, messages);
}

void write_qwen25(ChatWriter& writer, std::span<const ChatMessage> messages) {
  if (!begins_with_system(messages)) {
    write_chatml_message(writer, "system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "tool") write_tool_answer(writer, messages, i);
    if (role == "user" || role == "system" || role == "assistant")
      write_chatml_message(writer, role, messages[i].content);
  }
}

void write_qwen3(ChatWriter& writer, std::span<const ChatMessage> messages) {
  const std::size_t question = last_question(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "tool") write_tool_answer(writer, messages, i);
    if (role == "user" || role == "system") write_chatml_message(writer, role, messages[i].content);
    if (role != "assistant") continue;
    const auto [reasoning, content] = thought_of(messages[i]);
    if (i > question && (i + 1 == messages.size() || !reasoning.empty())) {
      const std::string_view trimmed = without_last_lines(without_first_lines(reasoning));
      write_chatml_message(writer, role, cat("<think>\n", trimmed, "\n</think>\n\n", without_first_lines(content)));
    } else {
      write_chatml_message(writer, role, content);
    }
  }
}

}  // namespace d9d::detail
