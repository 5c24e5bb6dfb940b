// The JSON form of a C++ type: one immutable object for each type, so that parsing, writing and schemas need no
// templates. describe.h makes these objects from record lists; programs use record_json.h.
//
// Values are passed as untyped pointers to the C++ type that the object represents: a record of fifty fields then needs
// a table instead of three instantiated functions for each field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/base/config/config_path.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/record.h"

namespace d9d {

class ValueType {
 public:
  virtual ~ValueType() = default;

  // Stores the value into `target`, an existing object. `range` limits the numbers in it. Throws ConfigError.
  virtual void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const = 0;

  // Returns JSON that parse would turn into an equal value.
  [[nodiscard]] virtual Json write(const void* value) const = 0;

  // JSON schema, draft 2020-12, of the output of write.
  [[nodiscard]] virtual Json schema(const Range& range) const = 0;
};

template <>
const ValueType& json_type<bool>();
template <>
const ValueType& json_type<std::int64_t>();
template <>
const ValueType& json_type<double>();
template <>
const ValueType& json_type<std::string>();
template <>
const ValueType& json_type<std::filesystem::path>();
template <>
const ValueType& json_type<nlohmann::json>();  // any JSON value
template <>
const ValueType& json_type<Json>();  // any JSON value, with the keys of objects in their order

// An enum, represented by its listed names.
class EnumType : public ValueType {
 public:
  explicit EnumType(std::vector<std::string_view> names) : names_(std::move(names)) {}

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

 private:
  virtual void set(void* target, std::size_t index) const = 0;  // to the value whose name is names[index]
  [[nodiscard]] virtual std::string_view name_of(const void* value) const = 0;

  std::vector<std::string_view> names_;
};

}  // namespace d9d
