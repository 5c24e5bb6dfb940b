#include "d9d/tokenizer/chat/published_template.h"

#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"

namespace d9d {
namespace {

constexpr const char *kDefault = "default", *kWithTools = "tool_use";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// An empty object without the file.
nlohmann::json object_in(const std::filesystem::path& path) {
  if (!is_there(path)) return nlohmann::json::object();
  nlohmann::json json = nlohmann::json::parse(text_of_file(path), nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(json.is_object(), ConfigError, path.string(), ": expected a JSON object, got ",
            json.is_discarded() ? "no JSON" : json.type_name(), ". Name the chat template instead.");
  return json;
}

// The text of "chat_template", or the one of this name in its list; nullopt if there is none.
std::optional<std::string> template_in(const nlohmann::json& config, std::string_view name) {
  const nlohmann::json found = config.value("chat_template", nlohmann::json());
  if (found.is_string() && name == kDefault) return found.get<std::string>();
  if (!found.is_array()) return std::nullopt;
  for (const nlohmann::json& named : found) {
    const bool is_named = named.is_object() && named.contains("name") && named.contains("template");
    if (is_named && named["name"] == name && named["template"].is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

// "bos_token" and so on, each a text or an object with "content".
std::map<std::string, std::string> special_tokens_beside(const std::filesystem::path& tokenizer) {
  std::map<std::string, std::string> tokens;
  for (const char* const name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const nlohmann::json object = object_in(tokenizer.parent_path() / name);
    for (const auto& [key, value] : object.items()) {
      if (!key.ends_with("_token")) continue;
      const nlohmann::json text = value.is_object() ? value.value("content", nlohmann::json()) : value;
      if (text.is_string()) tokens[key] = text.get<std::string>();
    }
  }
  return tokens;
}

}  // namespace

std::optional<JinjaSource> published_template(const std::filesystem::path& tokenizer) {
  const std::filesystem::path folder = tokenizer.parent_path();
  const std::filesystem::path jinja = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  if (is_there(jinja)) {
    JinjaSource source = template_in_file(jinja, tokenizer);
    const std::filesystem::path with_tools = folder / "additional_chat_templates" / cat(kWithTools, ".jinja");
    if (is_there(with_tools)) source.text_with_tools = text_of_file(with_tools);
    return source;
  }
  const nlohmann::json object = object_in(config);
  const std::optional<std::string> text = template_in(object, kDefault);
  if (!text) return std::nullopt;
  return JinjaSource{.text = *text,
                     .place = config.string(),
                     .text_with_tools = template_in(object, kWithTools),
                     .variables = special_tokens_beside(tokenizer)};
}

JinjaSource template_in_file(const std::filesystem::path& file, const std::filesystem::path& tokenizer) {
  return {.text = text_of_file(file), .place = file.string(), .variables = special_tokens_beside(tokenizer)};
}

}  // namespace d9d
