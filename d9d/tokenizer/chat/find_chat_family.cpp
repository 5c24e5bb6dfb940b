#include "d9d/tokenizer/chat/find_chat_family.h"

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"

namespace d9d {
namespace {

// The text of "chat_template" in the file; nullopt if it has none.
std::optional<std::string> template_in(const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(text_of_file(path), nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(json.is_object(), ConfigError, path.string(), ": expected a JSON object, got ",
            json.is_discarded() ? "no JSON" : json.type_name(), ". Name the family of the chat template instead.");
  const nlohmann::json found = json.value("chat_template", nlohmann::json());
  if (found.is_string()) return found.get<std::string>();
  if (!found.is_array()) return std::nullopt;
  for (const nlohmann::json& named : found) {
    const bool is_named = named.is_object() && named.contains("name") && named.contains("template");
    if (is_named && named["name"] == "default" && named["template"].is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

}  // namespace

ChatFamily chat_family_beside(const std::filesystem::path& tokenizer) {
  const std::filesystem::path folder = tokenizer.parent_path();
  const std::filesystem::path jinja = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  std::error_code error;
  if (std::filesystem::exists(jinja, error)) return chat_family_of(text_of_file(jinja), cat(jinja.string(), ": "));
  std::optional<std::string> text;
  if (std::filesystem::exists(config, error)) text = template_in(config);
  D9D_CHECK(text, ConfigError,
            "[tokenizer::chat] expected chat_template.jinja, or \"chat_template\" in "
            "tokenizer_config.json, beside '",
            tokenizer.string(), "', got none. Name the family of the chat template.");
  return chat_family_of(*text, cat(config.string(), ": "));
}

}  // namespace d9d
