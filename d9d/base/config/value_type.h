// How a C++ type looks in JSON: one immutable object a type, behind which parsing, writing and schemas are ordinary
// code. describe.h makes them from record lists; programs use record_json.h.
//
// Values are passed as untyped pointers to the C++ type that the object stands for: a record of fifty fields costs a
// table instead of three instantiated functions a field.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "d9d/base/config/config_path.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/record.h"

namespace d9d {

class ValueType {
 public:
  virtual ~ValueType() = default;

  // Stores into `target`, which is alive. `range` bounds the numbers within. Throws ConfigError.
  virtual void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const = 0;

  // What parse would turn into an equal value.
  [[nodiscard]] virtual Json write(const void* value) const = 0;

  // JSON schema, draft 2020-12, of what write gives.
  [[nodiscard]] virtual Json schema(const Range& range) const = 0;
};

[[nodiscard]] const ValueType& boolean_type();  // bool
[[nodiscard]] const ValueType& integer_type();  // std::int64_t
[[nodiscard]] const ValueType& number_type();   // double
[[nodiscard]] const ValueType& string_type();   // std::string
[[nodiscard]] const ValueType& path_type();     // std::filesystem::path
[[nodiscard]] const ValueType& any_type();      // nlohmann::json: whatever stands there

// An enum by its listed names.
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
