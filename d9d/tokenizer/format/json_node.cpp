#include "d9d/tokenizer/format/json_node.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d::detail {
namespace {

constexpr std::size_t kMostExcerpt = 80;
constexpr std::string_view kNoFeature =
    "This is no byte-level BPE tokenizer as published models have them; d9d does not read it.";

// The value on one line, shortened. Large or nested objects and lists are only named "an object" or "a list".
std::string excerpt(const nlohmann::json& json) {
  const auto is_structured = [](const nlohmann::json& element) { return element.is_structured(); };
  if (json.is_structured() && (json.size() > 8 || std::ranges::any_of(json, is_structured))) {
    return json.is_object() ? "an object" : "a list";
  }
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMostExcerpt ? text : text.substr(0, kMostExcerpt) + "...";
}

}  // namespace

JsonNode JsonNode::child(const nlohmann::json& json, std::string_view key) const {
  return {json, file_, keys_.empty() ? std::string(key) : cat(keys_, ".", key)};
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!json_->is_object()) refuse("an object", kNoFeature);
  const auto entry = json_->find(std::string(key));
  D9D_CHECK(entry != json_->end(), ConfigError, place(), "expected the key '", key,
            "', got none. The file is incomplete.");
  return child(*entry, key);
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!json_->is_object()) refuse("an object", kNoFeature);
  const auto entry = json_->find(std::string(key));
  if (entry == json_->end() || entry->is_null()) return std::nullopt;
  return child(*entry, key);
}

void JsonNode::expect_keys(std::initializer_list<std::string_view> keys) const {
  if (!json_->is_object()) refuse("an object", kNoFeature);
  for (const auto& [key, value] : json_->items()) {
    const std::string_view name = key;
    if (std::ranges::find(keys, name) == keys.end()) child(value, name).refuse("no such key", kNoFeature);
  }
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!json_->is_array()) refuse("a list", kNoFeature);
  std::vector<JsonNode> nodes;
  for (std::size_t i = 0; i < json_->size(); ++i) nodes.push_back(child((*json_)[i], std::to_string(i)));
  return nodes;
}

const std::string& JsonNode::string() const {
  if (!json_->is_string()) refuse("a string", kNoFeature);
  return json_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!json_->is_boolean()) refuse("true or false", kNoFeature);
  return json_->get<bool>();
}

std::uint32_t JsonNode::unsigned_integer() const {
  if (!json_->is_number_unsigned() || json_->get<std::uint64_t>() > 0xFFFFFFFF) refuse("an id of 32 bits", kNoFeature);
  return json_->get<std::uint32_t>();
}

void JsonNode::refuse(std::string_view expected, std::string_view remedy) const {
  throw ConfigError(cat(place(), "expected ", expected, ", got ", excerpt(*json_), ". ", remedy));
}

std::string JsonNode::place() const { return cat("[tokenizer] ", file_, ": ", keys_, keys_.empty() ? "" : ": "); }

}  // namespace d9d::detail
