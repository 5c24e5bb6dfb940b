#include "d9d/base/config/value_type.h"

#include "d9d/base/check.h"
#include "d9d/base/config/read_scalar.h"

namespace d9d {
namespace {

Json number_schema(const char* type, const Range& range) {
  Json schema = {{"type", type}};
  if (range.has_min) schema[range.exclusive_min ? "exclusiveMinimum" : "minimum"] = range.min;
  if (range.has_max) schema[range.exclusive_max ? "exclusiveMaximum" : "maximum"] = range.max;
  return schema;
}

// A type whose C++ value nlohmann converts to JSON itself, and which a single function reads.
template <class T>
class ScalarType : public ValueType {
 public:
  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override {
    *static_cast<T*>(target) = read(json, path, range);
  }
  Json write(const void* value) const override { return *static_cast<const T*>(value); }

 private:
  [[nodiscard]] virtual T read(const Json& json, const ConfigPath& path, const Range& range) const = 0;
};

class BooleanType final : public ScalarType<bool> {
  bool read(const Json& json, const ConfigPath& path, const Range&) const override { return read_boolean(json, path); }
  Json schema(const Range&) const override { return {{"type", "boolean"}}; }
};

class IntegerType final : public ScalarType<std::int64_t> {
  std::int64_t read(const Json& json, const ConfigPath& path, const Range& range) const override {
    return read_integer(json, path, range);
  }
  Json schema(const Range& range) const override { return number_schema("integer", range); }
};

class NumberType final : public ScalarType<double> {
  double read(const Json& json, const ConfigPath& path, const Range& range) const override {
    return read_number(json, path, range);
  }
  Json schema(const Range& range) const override { return number_schema("number", range); }
};

class StringType final : public ScalarType<std::string> {
  std::string read(const Json& json, const ConfigPath& path, const Range&) const override {
    return read_string(json, path);
  }
  Json schema(const Range&) const override { return {{"type", "string"}}; }
};

class PathType final : public ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range&, void* target) const override {
    std::string text = read_string(json, path);
    D9D_CHECK(!text.empty(), ConfigError, path,
              "expected a path, got an empty one. Give one, or leave the key out where it may be.");
    *static_cast<std::filesystem::path*>(target) = std::move(text);
  }
  Json write(const void* value) const override { return static_cast<const std::filesystem::path*>(value)->string(); }
  Json schema(const Range&) const override { return {{"type", "string"}}; }
};

template <class Any>
class AnyType final : public ScalarType<Any> {
  Any read(const Json& json, const ConfigPath&, const Range&) const override { return json; }
  Json schema(const Range&) const override { return Json::object(); }
};

}  // namespace

template <>
const ValueType& json_type<bool>() {
  static const BooleanType type;
  return type;
}
template <>
const ValueType& json_type<std::int64_t>() {
  static const IntegerType type;
  return type;
}
template <>
const ValueType& json_type<double>() {
  static const NumberType type;
  return type;
}
template <>
const ValueType& json_type<std::string>() {
  static const StringType type;
  return type;
}
template <>
const ValueType& json_type<std::filesystem::path>() {
  static const PathType type;
  return type;
}
template <>
const ValueType& json_type<nlohmann::json>() {
  static const AnyType<nlohmann::json> type;
  return type;
}
template <>
const ValueType& json_type<Json>() {
  static const AnyType<Json> type;
  return type;
}

void EnumType::parse(const Json& json, const ConfigPath& path, const Range&, void* target) const {
  set(target, read_name(json, path, names_));
}
Json EnumType::write(const void* value) const { return name_of(value); }
Json EnumType::schema(const Range&) const { return {{"enum", names_}}; }

}  // namespace d9d
