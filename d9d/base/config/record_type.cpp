#include "d9d/base/config/record_type.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/name_list.h"
#include "d9d/base/config/read_scalar.h"

namespace d9d {
namespace {

void* member_of(void* record, const FieldDescription& field) { return static_cast<std::byte*>(record) + field.offset; }
const void* member_of(const void* record, const FieldDescription& field) {
  return static_cast<const std::byte*>(record) + field.offset;
}

const RecordType& record_of(const FieldDescription& field) { return static_cast<const RecordType&>(*field.type); }

void check_object(const Json& json, const ConfigPath& path) {
  D9D_CHECK(json.is_object(), ConfigError, path, "expected an object, got ", json_excerpt(json),
            ". Write it as {\"key\": value}.");
}

void check_keys(const Json& object, const ConfigPath& path, const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : object.items()) {
    D9D_CHECK(std::find(known.begin(), known.end(), key) != known.end(), ConfigError, config_source(path),
              "unknown key '", (path / key).keys, "'.", did_you_mean(key, known));
  }
}

bool knows_all_keys(const RecordType& record, const Json& object) {
  const auto items = object.items();
  return std::all_of(items.begin(), items.end(), [&](const auto& item) {
    return std::find(record.keys().begin(), record.keys().end(), item.key()) != record.keys().end();
  });
}

// "PretrainConfig<Qwen3DenseParameters>" of d9d::PretrainConfig<d9d::Qwen3DenseParameters>.
std::string name_without_namespaces(const std::type_info& type) {
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr),
                                                         &std::free);
  static const std::regex kNamespace(R"((\w+|\(anonymous namespace\))::)");
  return std::regex_replace(name == nullptr ? type.name() : name.get(), kNamespace, "");
}

// Mistakes in fields() that a program would not notice otherwise.
void check_range(const FieldDescription& field) {
  const Range& range = field.range;
  if (!range.has_min && !range.has_max) return;
  D9D_CHECK(!range.has_min || !range.has_max || range.min <= range.max, ConfigError, "[config] expected the range of '",
            field.name, "' to begin before it ends, got ", range.min, " to ", range.max, ". Correct it in fields().");
  D9D_CHECK(field.type->schema(range) != field.type->schema({}), ConfigError,
            "[config] expected a range only for numbers and containers of them, got one for '", field.name,
            "'. Check other values in the record's validate().");
}

void check_distinct(const std::vector<std::string_view>& names, const char* what, const char* remedy) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    D9D_CHECK(std::find(names.begin(), name, *name) == name, ConfigError, "[config] expected ", what, " once, got '",
              *name, "' twice. ", remedy);
  }
}

}  // namespace

RecordType::RecordType(const std::type_info& type, Tag tag, std::vector<FieldDescription> fields, const void* defaults)
    : title_(name_without_namespaces(type)), tag_(tag), fields_(std::move(fields)), defaults_(defaults) {
  if (!tag_.key.empty()) keys_.push_back(tag_.key);
  for (const auto& field : fields_) {
    if (field.name.empty()) {
      const RecordType& part = record_of(field);
      const bool has_same_tag = !tag_.key.empty() && part.tag_.key == tag_.key && part.tag_.value == tag_.value;
      std::copy_if(part.keys_.begin(), part.keys_.end(), std::back_inserter(keys_),
                   [&](std::string_view key) { return !has_same_tag || key != tag_.key; });
    } else {
      keys_.push_back(field.name);
      check_range(field);
    }
  }
  check_distinct(keys_, "each key of a record", "Rename a field in fields(), or one of a flattened record.");
}

void RecordType::parse(const Json& json, const ConfigPath& path, const Range&, void* target) const {
  check_object(json, path);
  check_keys(json, path, keys_);
  if (const auto tag = json.find(tag_.key); !tag_.key.empty() && tag != json.end()) {
    std::ignore = read_name(*tag, path / tag_.key, std::span(&tag_.value, 1));
  }
  parse_fields(json, path, target);
}

void RecordType::parse_fields(const Json& object, const ConfigPath& path, void* target) const {
  for (const auto& field : fields_) {
    void* member = member_of(target, field);
    if (field.name.empty()) {
      record_of(field).parse_fields(object, path, member);
      continue;
    }
    const auto value = object.find(field.name);
    if (value != object.end()) {
      field.type->parse(*value, path / field.name, field.range, member);
    } else {
      D9D_CHECK(!field.is_required, ConfigError, config_source(path), "missing key '", (path / field.name).keys,
                "'. Add it.");
    }
  }
  validate(target, path);
}

Json RecordType::write(const void* value) const {
  Json object = Json::object();
  if (!tag_.key.empty()) object[std::string(tag_.key)] = tag_.value;
  write_fields(value, object);
  return object;
}

void RecordType::write_fields(const void* value, Json& object) const {
  for (const auto& field : fields_) {
    const void* member = member_of(value, field);
    if (field.name.empty()) {
      record_of(field).write_fields(member, object);
    } else {
      object[std::string(field.name)] = field.type->write(member);
    }
  }
}

Json RecordType::schema(const Range&) const {
  Json schema = {{"title", title_},
                 {"type", "object"},
                 {"properties", Json::object()},
                 {"required", Json::array()},
                 {"additionalProperties", false}};
  if (!tag_.key.empty()) {
    schema["properties"][std::string(tag_.key)] = {{"const", tag_.value}};
    schema["required"].push_back(tag_.key);
  }
  add_field_schemas(schema);
  return schema;
}

void RecordType::add_field_schemas(Json& schema) const {
  for (const auto& field : fields_) {
    if (field.name.empty()) {
      record_of(field).add_field_schemas(schema);
      continue;
    }
    Json property = field.type->schema(field.range);
    if (field.is_required) {
      schema["required"].push_back(field.name);
    } else {
      property["default"] = field.type->write(member_of(defaults_, field));
    }
    schema["properties"][std::string(field.name)] = std::move(property);
  }
}

UnionType::UnionType(std::vector<const RecordType*> alternatives) : alternatives_(std::move(alternatives)) {
  for (const auto* alternative : alternatives_) {
    if (alternative->tag().key.empty()) continue;
    D9D_ASSERT(key_.empty() || key_ == alternative->tag().key, "one union has the tags '", key_, "' and '",
               alternative->tag().key, "'");
    key_ = alternative->tag().key;
    tags_.push_back(alternative->tag().value);
  }
  check_distinct(tags_, "each tag of a std::variant", "Give its records distinct values of kTag.");
}

void UnionType::parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const {
  const std::size_t index = find_alternative(json, path);
  alternatives_[index]->parse(json, path, range, emplace(target, index));
}

std::size_t UnionType::find_alternative(const Json& json, const ConfigPath& path) const {
  check_object(json, path);
  std::string_view wanted;  // empty: the alternative without a tag
  if (const auto tag = json.find(key_); tag != json.end()) {
    wanted = tags_[read_name(*tag, path / key_, tags_)];
  } else {
    D9D_CHECK(means_untagged(json), ConfigError, config_source(path), "missing key '", (path / key_).keys,
              "', which is one of ", quoted_list(tags_), ". Add it.");
  }
  const auto at = std::find_if(alternatives_.begin(), alternatives_.end(),
                               [&](const auto* alternative) { return alternative->tag().value == wanted; });
  return static_cast<std::size_t>(at - alternatives_.begin());
}

// Whether an object without a tag means the alternative that has none, rather than one whose tag was forgotten.
bool UnionType::means_untagged(const Json& object) const {
  const auto has_no_tag = [](const auto* alternative) { return alternative->tag().key.empty(); };
  const auto untagged = std::find_if(alternatives_.begin(), alternatives_.end(), has_no_tag);
  if (untagged == alternatives_.end()) return false;
  if (knows_all_keys(**untagged, object)) return true;
  // {"type": "cosine"}, where the key of the tag is "name".
  const bool has_tag_elsewhere = std::any_of(object.begin(), object.end(), [&](const Json& value) {
    return value.is_string() &&
           std::find(tags_.begin(), tags_.end(), value.get_ref<const std::string&>()) != tags_.end();
  });
  return !has_tag_elsewhere && std::none_of(alternatives_.begin(), alternatives_.end(), [&](const auto* alternative) {
    return knows_all_keys(*alternative, object);
  });
}

Json UnionType::write(const void* value) const { return alternatives_[index_of(value)]->write(get(value)); }

Json UnionType::schema(const Range&) const {
  Json schemas = Json::array();
  for (const auto* alternative : alternatives_) schemas.push_back(alternative->schema({}));
  return {{"oneOf", std::move(schemas)}};
}

}  // namespace d9d
