// Renders conversations as the text of a chat template: natively for a published family, by Jinja for any other.
//
// Example
//   const d9d::ChatRenderer chat = d9d::chat_renderer({.tokenizer = "Qwen3-0.6B/tokenizer.json"});
//   const d9d::RenderedChat rendered =
//       chat.render(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])");
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "d9d/tokenizer/chat/chat_template.h"
#include "d9d/tokenizer/chat/jinja/jinja_template.h"

namespace d9d {

// Whether a JSON text of tools has none: it is empty, null or an empty list.
[[nodiscard]] bool is_no_tools(std::string_view tools);

class ChatRenderer {
 public:
  // jinja: of the same text as the family's, for conversations with tools, and with content that is no text; null:
  // these are refused. enable_thinking: that of all conversations.
  explicit ChatRenderer(ChatFamily family, std::shared_ptr<const JinjaTemplate> jinja = nullptr,
                        bool enable_thinking = true)
      : family_(family), jinja_(std::move(jinja)), enable_thinking_(enable_thinking) {}
  explicit ChatRenderer(std::shared_ptr<const JinjaTemplate> jinja) : jinja_(std::move(jinja)) {}

  // messages, tools: JSON texts; tools may be empty. Keys of messages that a family does not read are added to
  // other_keys. Thread-safe. Throws ConfigError for a conversation that the template cannot render, and the errors of
  // JinjaTemplate::render().
  [[nodiscard]] RenderedChat render(std::string_view messages, std::string_view tools = {},
                                    const ChatOptions& options = {}, std::set<std::string>* other_keys = nullptr) const;
  // The text of render(), also of a template that does not say which part of it is the assistant's.
  [[nodiscard]] std::string render_text(std::string_view messages, std::string_view tools = {},
                                        const ChatOptions& options = {}) const;

  // What an answer ends with: of most templates the text of one token. Empty if it is not known.
  [[nodiscard]] std::string end_of_answer() const;
  // Tokens that the tokenizer must have; none are known of Jinja templates.
  [[nodiscard]] std::span<const std::string_view> special_tokens() const;

  // Whether the template says itself what the assistant says.
  [[nodiscard]] bool marks_answers() const { return !family_ && jinja_->marks_answers(); }

  [[nodiscard]] const std::optional<ChatFamily>& family() const { return family_; }
  [[nodiscard]] const std::shared_ptr<const JinjaTemplate>& jinja() const { return jinja_; }
  [[nodiscard]] std::string name() const;         // of the family, or the place of the template
  [[nodiscard]] std::string fingerprint() const;  // the same for renderers that write the same

  friend bool operator==(const ChatRenderer& a, const ChatRenderer& b) { return a.fingerprint() == b.fingerprint(); }

 private:
  // answers: whether RenderedChat::assistant is wanted.
  [[nodiscard]] RenderedChat rendered(std::string_view messages, std::string_view tools, const ChatOptions& options,
                                      std::set<std::string>* other_keys, bool answers) const;

  std::optional<ChatFamily> family_ = {};
  std::shared_ptr<const JinjaTemplate> jinja_;
  bool enable_thinking_ = true;  // of a family
};

struct ChatRendererOptions {
  std::filesystem::path tokenizer;                // a tokenizer.json, whose folder may have a template
  std::optional<std::string> chat_template = {};  // a family or a file; unset: the template of the folder
  std::string template_kwargs = {};               // a JSON object of further variables of the template; empty: none
  std::optional<std::string> python = {};         // JinjaSource::python

  friend bool operator==(const ChatRendererOptions&, const ChatRendererOptions&) = default;
};

// Finds the renderer: build it once. A template that writes what a family does is rendered as that family. Throws
// ConfigError if there is no template, if the named one writes otherwise than that of the folder, for template_kwargs
// that are no object, that conversations set or that a named family does not have, or if a template marks as the
// assistant's what others say; and the errors of published_template() and JinjaTemplate::render().
[[nodiscard]] ChatRenderer chat_renderer(const ChatRendererOptions& options);

}  // namespace d9d
