#include "d9d/base/config/override.h"

#include <charconv>
#include <string>
#include <vector>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::vector<std::string> split_at_dots(std::string_view path) {
  std::vector<std::string> keys(1);
  for (const char c : path) {
    if (c == '.') {
      keys.emplace_back();
    } else {
      keys.back() += c;
    }
  }
  return keys;
}

Json& list_element(Json& list, const std::string& key, std::string_view assignment) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  D9D_CHECK(error == std::errc{} && end == key.data() + key.size() && index < list.size(), ConfigError,
            "[config] override '", assignment, "': expected the index of one of ", list.size(), " list elements, got '",
            key, "'. Change the path, or give the whole list.");
  return list[index];
}

Json& child(Json& parent, const std::string& key, std::string_view assignment) {
  if (parent.is_array()) return list_element(parent, key, assignment);
  if (parent.is_null()) parent = Json::object();
  D9D_CHECK(parent.is_object(), ConfigError, "[config] override '", assignment,
            "': expected an object or a list above '", key, "', got ", json_excerpt(parent), ". Shorten the path.");
  return parent[key];
}

Json json_or_string(std::string_view text) {
  if (!Json::accept(text)) return std::string(text);
  return parse_json_text(text, "override " + std::string(text));
}

}  // namespace

void apply_override(Json& config, std::string_view assignment) {
  const auto equals = assignment.find('=');
  const auto path = assignment.substr(0, equals);
  D9D_CHECK(equals != std::string_view::npos && !path.empty() && path.front() != '-', UsageError,
            "[config] expected an override as key.path=value, got '", assignment, "'. See --help.");
  Json* target = &config;
  for (const auto& key : split_at_dots(path)) target = &child(*target, key, assignment);
  *target = json_or_string(assignment.substr(equals + 1));
}

}  // namespace d9d
