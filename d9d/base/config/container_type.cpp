#include "d9d/base/config/container_type.h"

#include "d9d/base/check.h"

namespace d9d {
namespace {

void check_list(const Json& json, const ConfigPath& path) {
  D9D_CHECK(json.is_array(), ConfigError, path, "expected a list, got ", json_excerpt(json),
            ". Write it as [value, value].");
}

}  // namespace

void OptionalType::parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const {
  reset(target);
  if (!json.is_null()) inner_.parse(json, path, range, emplace(target));
}

Json OptionalType::write(const void* value) const {
  const void* inner = get(value);
  return inner == nullptr ? Json(nullptr) : inner_.write(inner);
}

Json OptionalType::schema(const Range& range) const {
  return {{"anyOf", Json::array({inner_.schema(range), Json{{"type", "null"}}})}};
}

void ListType::parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const {
  check_list(json, path);
  clear(target);
  for (std::size_t i = 0; i < json.size(); ++i) element_.parse(json[i], path / i, range, append(target));
}

Json ListType::write(const void* value) const {
  Json list = Json::array();
  for_each(value, [&](const void* element) { list.push_back(element_.write(element)); });
  return list;
}

Json ListType::schema(const Range& range) const { return {{"type", "array"}, {"items", element_.schema(range)}}; }

void MapType::parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const {
  D9D_CHECK(json.is_object(), ConfigError, path, "expected an object, got ", json_excerpt(json),
            ". Write it as {\"key\": value}.");
  clear(target);
  for (const auto& [key, value] : json.items()) element_.parse(value, path / key, range, insert(target, key));
}

Json MapType::write(const void* value) const {
  Json object = Json::object();
  for_each(value, [&](const std::string& key, const void* element) { object[key] = element_.write(element); });
  return object;
}

Json MapType::schema(const Range& range) const {
  return {{"type", "object"}, {"additionalProperties", element_.schema(range)}};
}

void PairType::parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const {
  check_list(json, path);
  D9D_CHECK(json.size() == 2, ConfigError, path, "expected a list of 2 values, got ", json_excerpt(json),
            ". Change its length.");
  const auto [first, second] = members(target);
  first_.parse(json[0], path / std::size_t{0}, range, first);
  second_.parse(json[1], path / std::size_t{1}, range, second);
}

Json PairType::write(const void* value) const {
  const auto [first, second] = members(value);
  return Json::array({first_.write(first), second_.write(second)});
}

Json PairType::schema(const Range& range) const {
  return {{"type", "array"},
          {"prefixItems", Json::array({first_.schema(range), second_.schema(range)})},
          {"minItems", 2},
          {"maxItems", 2}};
}

}  // namespace d9d
