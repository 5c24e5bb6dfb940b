// Renders conversations by any Jinja chat template, in Python processes with Jinja2. The text equals that of
// transformers' apply_chat_template, on 26 Jul 2024 for templates that write a date.
//
// Example
//   const d9d::JinjaTemplate chat({.text = d9d::text_of_file("chat_template.jinja"), .place = "chat_template.jinja"});
//   const d9d::RenderedChat rendered =
//       chat.render(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])", "");
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/base/process/line_process.h"
#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d {

struct JinjaSource {
  std::string text;                                   // of the template
  std::string place;                                  // where it is from, for messages
  std::optional<std::string> text_with_tools = {};    // of the template for conversations with tools; unset: the same
  std::map<std::string, std::string> variables = {};  // special tokens that it may write: {"bos_token", "<s>"}
  std::string options = {};                           // a JSON object of further variables; empty: none
  std::optional<std::string> python = {};             // with the package jinja2; unset: that of d9d's source folder
};

class JinjaTemplate {
 public:
  // Starts no process yet.
  explicit JinjaTemplate(JinjaSource source);

  [[nodiscard]] const JinjaSource& source() const { return source_; }
  // Whether it has {% generation %} blocks.
  [[nodiscard]] bool marks_answers() const { return marks_answers_; }

  // Thread-safe: each call that finds no process idle starts one. messages, tools: JSON texts; tools may be empty.
  // answers: whether RenderedChat::assistant is wanted; it is the text of the template's {% generation %} blocks, or
  // without such blocks what each message of the assistant adds to the text.
  //
  // Throws ConfigError with the template's reason if it refuses the conversation, and if its text does not say which
  // part is the assistant's. Throws IoError if there is no Python with Jinja2, if the template is none, or if it
  // takes more than a minute. An empty list of tools is none.
  [[nodiscard]] RenderedChat render(std::string_view messages, std::string_view tools, const ChatOptions& options = {},
                                    bool answers = true) const;

 private:
  [[nodiscard]] std::unique_ptr<LineProcess> take_process() const;
  void give_back(std::unique_ptr<LineProcess> process) const;

  const JinjaSource source_;
  const bool marks_answers_;
  mutable std::mutex mutex_;  // guards idle_
  mutable std::vector<std::unique_ptr<LineProcess>> idle_;
};

}  // namespace d9d
