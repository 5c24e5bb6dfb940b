// JSON forms of records (objects) and of std::variant of records (objects with a tag). The subclasses in describe.h
// know the C++ type.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "d9d/base/config/value_type.h"

namespace d9d {

// One field of a record, without its C++ type.
struct FieldDescription {
  std::string_view name;  // empty: a flattened field
  std::size_t offset;     // of the member in the record, in bytes
  const ValueType* type;
  bool is_required;
  Range range;
};

class RecordType : public ValueType {
 public:
  // `defaults` is a default-constructed record of the type that must outlive this object.
  RecordType(const std::type_info& type, Tag tag, std::vector<FieldDescription> fields, const void* defaults);

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

  [[nodiscard]] const Tag& tag() const { return tag_; }  // empty: no tag

  // All JSON keys in order, beginning with that of the tag.
  [[nodiscard]] const std::vector<std::string_view>& keys() const { return keys_; }

 private:
  // Checks the record's own rules across fields.
  virtual void validate(const void* record, const ConfigPath& path) const = 0;

  void parse_fields(const Json& object, const ConfigPath& path, void* target) const;
  void write_fields(const void* value, Json& object) const;
  void add_field_schemas(Json& schema) const;

  std::string title_;  // the C++ name without namespaces
  Tag tag_;
  std::vector<FieldDescription> fields_;
  std::vector<std::string_view> keys_;
  const void* defaults_;
};

class UnionType : public ValueType {
 public:
  explicit UnionType(std::vector<const RecordType*> alternatives);

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

 private:
  [[nodiscard]] virtual void* emplace(void* target, std::size_t index) const = 0;
  [[nodiscard]] virtual std::size_t index_of(const void* value) const = 0;
  [[nodiscard]] virtual const void* get(const void* value) const = 0;

  [[nodiscard]] std::size_t find_alternative(const Json& json, const ConfigPath& path) const;
  [[nodiscard]] bool means_untagged(const Json& object) const;

  std::vector<const RecordType*> alternatives_;
  std::string_view key_;                // the key of the tag
  std::vector<std::string_view> tags_;  // tags of the alternatives that have one, in order
};

}  // namespace d9d
