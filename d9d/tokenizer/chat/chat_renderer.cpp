#include "d9d/tokenizer/chat/chat_renderer.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/tokenizer/chat/probe_conversations.h"
#include "d9d/tokenizer/chat/published_template.h"

namespace d9d {
namespace {

void check_is_json(std::string_view text, const char* what) {
  D9D_CHECK(nlohmann::json::accept(text), ConfigError, what, " that are no JSON");
}

bool is_empty(std::string_view tools) { return tools.empty() || tools == "null" || tools == "[]"; }

// Whether a message of the assistant calls tools.
bool calls_tools(const nlohmann::json& messages) {
  if (!messages.is_array()) return false;
  for (const nlohmann::json& message : messages) {
    if (!message.is_object()) continue;
    const nlohmann::json calls = message.value("tool_calls", nlohmann::json());
    if (!calls.empty()) return true;
  }
  return false;
}

std::shared_ptr<const JinjaTemplate> jinja_of(std::optional<JinjaSource> source,
                                              const std::optional<std::string>& python) {
  if (!source) return nullptr;
  source->python = python;
  return std::make_shared<const JinjaTemplate>(*std::move(source));
}

// The renderer of a text: that of a family if its text is published as one, or writes what one writes.
ChatRenderer renderer_of(std::shared_ptr<const JinjaTemplate> jinja) {
  if (const auto family = published_family_of(jinja->source().text)) return ChatRenderer(*family, std::move(jinja));
  ChatRenderer own(jinja);
  for (const auto& entry : enum_names(ChatFamily{})) {
    ChatRenderer family(entry.value, jinja);
    if (!jinja->marks_answers() && !detail::first_difference(own, family)) return family;
  }
  detail::check_answers(*jinja);
  return own;
}

std::string family_names() {
  std::string names;
  for (const auto& entry : enum_names(ChatFamily{})) names += cat(names.empty() ? "" : ", ", entry.name);
  return names;
}

ChatRenderer named_renderer(const std::string& name, const ChatRendererOptions& options,
                            const std::shared_ptr<const JinjaTemplate>& published) {
  for (const auto& entry : enum_names(ChatFamily{})) {
    if (entry.name == name) return ChatRenderer(entry.value, published);
  }
  std::error_code error;
  D9D_CHECK(std::filesystem::is_regular_file(name, error), ConfigError,
            "[tokenizer::chat] expected the name of a family (", family_names(),
            ") or a file with a Jinja template as chat_template, got '", name, "'. Correct it.");
  return renderer_of(jinja_of(template_in_file(name, options.tokenizer), options.python));
}

}  // namespace

RenderedChat ChatRenderer::render(std::string_view messages, std::string_view tools, const ChatOptions& options,
                                  std::set<std::string>* other_keys) const {
  if (!tools.empty()) check_is_json(tools, "tools");
  if (!family_) {
    check_is_json(messages, "messages");
    return jinja_->render(messages, tools, options);
  }
  const auto json = nlohmann::json::parse(messages, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(!json.is_discarded(), ConfigError, "messages that are no JSON");
  if (jinja_ != nullptr && (!is_empty(tools) || calls_tools(json))) return jinja_->render(messages, tools, options);
  D9D_CHECK(is_empty(tools), ConfigError, "tools, which the chat template ", name(),
            " renders only by its Jinja text. Put chat_template.jinja beside the tokenizer");
  const std::vector<ChatMessage> read = read_chat_messages(json, "messages", other_keys);
  for (const ChatMessage& message : read) {
    const bool is_unread = message.reasoning_content && *family_ != ChatFamily::kQwen3;
    if (is_unread && other_keys != nullptr) other_keys->insert("reasoning_content");
  }
  return render_chat(*family_, read, options);
}

std::string ChatRenderer::end_of_answer() const {
  if (family_) return std::string(end_of_message(*family_));
  constexpr std::string_view kAnswer = "answeredso";
  const RenderedChat chat = jinja_->render(
      cat(R"([{"role": "user", "content": "asked"}, {"role": "assistant", "content": ")", kAnswer, R"("}])"),
      /*tools=*/{});
  if (chat.assistant.empty()) return {};
  const TextRange& range = chat.assistant.back();
  const std::string said = chat.text.substr(range.begin, range.end - range.begin);
  const std::size_t found = said.rfind(kAnswer);
  if (found == std::string::npos) return {};
  std::string end = said.substr(found + kAnswer.size());
  end.erase(end.find_last_not_of(" \n") + 1);
  return end;
}

std::span<const std::string_view> ChatRenderer::special_tokens() const {
  return family_ ? d9d::special_tokens(*family_) : std::span<const std::string_view>{};
}

std::string ChatRenderer::name() const {
  return family_ ? std::string(enum_name(*family_)) : cat("'", jinja_->source().place, "'");
}

std::string ChatRenderer::fingerprint() const {
  if (family_) return std::string(enum_name(*family_));
  std::string all = jinja_->source().text;
  for (const auto& [name, token] : jinja_->source().variables) all += cat('\n', name, '=', token);
  return cat("jinja ", all.size(), ' ', fnv1a(all));
}

ChatRenderer chat_renderer(const ChatRendererOptions& options) {
  const auto published = jinja_of(published_template(options.tokenizer), options.python);
  if (!options.chat_template) {
    D9D_CHECK(published != nullptr, ConfigError,
              "[tokenizer::chat] expected chat_template.jinja, or \"chat_template\" in tokenizer_config.json, beside '",
              options.tokenizer.string(), "', got none. Name a family (", family_names(),
              ") or a file with a Jinja template as chat_template.");
    return renderer_of(published);
  }
  ChatRenderer named = named_renderer(*options.chat_template, options, published);
  if (published == nullptr) return named;
  const ChatRenderer beside = renderer_of(published);
  if (named == beside) return named;
  const auto difference = detail::first_difference(named, beside);
  D9D_CHECK(!difference, ConfigError, "[tokenizer::chat] expected chat_template = ", *options.chat_template,
            " to write what the template of '", published->source().place,
            "' writes, which programs read with the model, got ", difference.value_or(""),
            ". Leave chat_template out, or put the template that you train by beside a copy of the tokenizer.");
  return named;
}

}  // namespace d9d
