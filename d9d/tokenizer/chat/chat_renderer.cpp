#include "d9d/tokenizer/chat/chat_renderer.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/tokenizer/chat/chat_message.h"
#include "d9d/tokenizer/chat/jinja/script.h"
#include "d9d/tokenizer/chat/probe_conversations.h"
#include "d9d/tokenizer/chat/published_template.h"

namespace d9d {
namespace {

void check_is_json(std::string_view text, const char* what) {
  D9D_CHECK(nlohmann::json::accept(text), ConfigError, what, " that are no JSON");
}

// Whether families render the message: it has texts alone, and calls no tool.
bool is_plain(const nlohmann::json& message) {
  if (!message.is_object() || !message.contains("role") || !message.contains("content")) return false;
  for (const auto& [key, value] : message.items()) {
    if ((key == "role" || key == "content") && !value.is_string()) return false;
    if (is_reasoning(key) && !value.is_string() && !value.is_null()) return false;
    if ((key == "tool_calls" || key == "function_call") && !value.empty()) return false;
  }
  return true;
}

// Those that name a message, say, would replace what is rendered.
void check_template_kwargs(const std::string& kwargs) {
  if (kwargs.empty()) return;
  const auto variables = nlohmann::json::parse(kwargs, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(variables.is_object(), ConfigError,
            "[tokenizer::chat] expected an object as chat_template_kwargs, such as {\"enable_thinking\": false}, got ",
            kwargs, ". Correct it.");
  for (const char* const own : {"messages", "tools", "add_generation_prompt"}) {
    D9D_CHECK(!variables.contains(own), ConfigError,
              "[tokenizer::chat] expected variables in chat_template_kwargs that conversations do not set, got \"", own,
              "\". Remove it.");
  }
}

std::shared_ptr<const JinjaTemplate> jinja_of(std::optional<JinjaSource> source, const ChatRendererOptions& options) {
  if (!source) return nullptr;
  source->options = options.template_kwargs;
  source->python = options.python;
  return std::make_shared<const JinjaTemplate>(*std::move(source));
}

// A family with variables of its template; nullopt if it does not know them: none but Qwen 3 knows any.
std::optional<ChatRenderer> family_with(const std::string& kwargs, ChatFamily family,
                                        const std::shared_ptr<const JinjaTemplate>& jinja) {
  const nlohmann::json variables = kwargs.empty() ? nlohmann::json::object() : nlohmann::json::parse(kwargs);
  if (variables.empty()) return ChatRenderer(family, jinja);
  const nlohmann::json thinks = variables.value("enable_thinking", nlohmann::json());
  if (family != ChatFamily::kQwen3 || variables.size() > 1 || !thinks.is_boolean()) return std::nullopt;
  return ChatRenderer(family, jinja, thinks.get<bool>());
}

// Whether what the text writes as bos_token is what the family writes: tokens beside the tokenizer may be others.
bool begins_as(ChatFamily family, const JinjaSource& source) {
  const auto bos = source.variables.find("bos_token");
  const bool writes_it = bos != source.variables.end() && source.text.find("bos_token") != std::string::npos;
  return !writes_it || bos->second == d9d::special_tokens(family).front();
}

// The renderer of a text: that of a family if its text is published as one, or writes what one writes.
ChatRenderer renderer_of(const std::shared_ptr<const JinjaTemplate>& jinja) {
  const JinjaSource& source = jinja->source();
  if (const auto published = published_family_of(source.text); published && begins_as(*published, source)) {
    if (const auto family = family_with(source.options, *published, jinja)) return *family;
  }
  ChatRenderer own(jinja);
  for (const auto& entry : enum_names(ChatFamily{})) {
    const auto family = family_with(source.options, entry.value, jinja);
    if (family && !jinja->marks_answers() && !detail::first_difference(own, *family)) return *family;
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
    if (entry.name != name) continue;
    const auto family = family_with(options.template_kwargs, entry.value, published);
    D9D_CHECK(family, ConfigError, "[tokenizer::chat] expected chat_template_kwargs that the family ", name,
              " knows (of qwen3 \"enable_thinking\": true or false, of others none), got ", options.template_kwargs,
              ". Name a file with the family's Jinja template, or leave chat_template out to use the one beside the "
              "tokenizer.");
    return *family;
  }
  std::error_code error;
  D9D_CHECK(std::filesystem::is_regular_file(name, error), ConfigError,
            "[tokenizer::chat] expected the name of a family (", family_names(),
            ") or a file with a Jinja template as chat_template, got '", name, "'. Correct it.");
  return renderer_of(jinja_of(template_in_file(name, options.tokenizer), options));
}

}  // namespace

bool is_no_tools(std::string_view tools) { return tools.empty() || tools == "null" || tools == "[]"; }

RenderedChat ChatRenderer::render(std::string_view messages, std::string_view tools, const ChatOptions& options,
                                  std::set<std::string>* other_keys) const {
  return rendered(messages, tools, options, other_keys, /*answers=*/true);
}

std::string ChatRenderer::render_text(std::string_view messages, std::string_view tools,
                                      const ChatOptions& options) const {
  return rendered(messages, tools, options, /*other_keys=*/nullptr, /*answers=*/false).text;
}

RenderedChat ChatRenderer::rendered(std::string_view messages, std::string_view tools, const ChatOptions& options,
                                    std::set<std::string>* other_keys, bool answers) const {
  if (!tools.empty()) check_is_json(tools, "tools");
  if (!family_) {
    check_is_json(messages, "messages");
    return jinja_->render(messages, tools, options, answers);
  }
  const auto json = nlohmann::json::parse(messages, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(!json.is_discarded(), ConfigError, "messages that are no JSON");
  const bool is_native = is_no_tools(tools) && (!json.is_array() || std::ranges::all_of(json, is_plain));
  if (jinja_ != nullptr && !is_native) return jinja_->render(messages, tools, options, answers);
  D9D_CHECK(is_no_tools(tools), ConfigError, "tools, which the chat template ", name(),
            " renders only by its Jinja text. Put chat_template.jinja beside the tokenizer");
  const std::vector<ChatMessage> read = read_chat_messages(json, "messages", other_keys);
  for (const ChatMessage& message : read) {
    const bool is_unread = message.reasoning_content && *family_ != ChatFamily::kQwen3;
    if (is_unread && other_keys != nullptr) other_keys->insert("reasoning_content");
  }
  ChatOptions own = options;
  own.enable_thinking = options.enable_thinking && enable_thinking_;
  return render_chat(*family_, read, own);
}

std::string ChatRenderer::end_of_answer() const {
  if (family_) return std::string(end_of_message(*family_));
  constexpr std::string_view kAnswer = "answeredso";
  const std::string asked =
      cat(R"([{"role": "user", "content": "asked"}, {"role": "assistant", "content": ")", kAnswer, R"("}])");
  std::string said;
  try {
    if (marks_answers()) {
      const RenderedChat chat = render(asked);
      if (chat.assistant.empty()) return {};
      const TextRange& range = chat.assistant.back();
      said = chat.text.substr(range.begin, range.end - range.begin);
    } else {
      said = render_text(asked);
    }
  } catch (const ConfigError&) {  // the template refuses conversations without a system message, say
    return {};
  }
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
  std::string family = family_ ? cat(enum_name(*family_), enable_thinking_ ? "" : " without thinking") : "";
  if (jinja_ == nullptr) return family;
  const JinjaSource& source = jinja_->source();
  std::string all =
      cat(source.text, '\n', source.text_with_tools.value_or(""), '\n', source.options, '\n', render_script());
  for (const auto& [name, token] : source.variables) all += cat('\n', name, '=', token);
  return cat(family, " jinja ", all.size(), ' ', fnv1a(all));
}

ChatRenderer chat_renderer(const ChatRendererOptions& options) {
  check_template_kwargs(options.template_kwargs);
  const auto published = jinja_of(published_template(options.tokenizer), options);
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
