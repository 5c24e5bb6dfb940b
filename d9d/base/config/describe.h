// The JSON form of a C++ type, derived from the type itself. A field of a configuration record may be: bool,
// std::int64_t, double, std::string, std::filesystem::path, an enum with names, a record, nlohmann::json (anything);
// std::optional (nullable), std::vector, std::pair, std::map by string, std::variant of records (selected by their tag)
// of these; or a type whose header declares a specialisation of json_type.
//
// Example
//   json_type<std::vector<ScheduleConfig>>().parse(json, path, {}, &schedules);
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "d9d/base/config/container_type.h"
#include "d9d/base/config/record_type.h"
#include "d9d/base/config/value_type.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

// json_type of a record, with its keys.
template <Record T>
[[nodiscard]] const RecordType& record_type() {
  return static_cast<const RecordType&>(json_type<T>());
}

namespace detail {

template <class T>
[[nodiscard]] T& as(void* value) {
  return *static_cast<T*>(value);
}
template <class T>
[[nodiscard]] const T& as(const void* value) {
  return *static_cast<const T*>(value);
}

template <class T>
struct TypeOf;  // specialised for each kind of type that a field may have

template <NamedEnum E>
struct TypeOf<E> final : EnumType {
  TypeOf() : EnumType(names()) {}
  static std::vector<std::string_view> names() {
    std::vector<std::string_view> names;
    for (const auto& entry : enum_names(E{})) names.push_back(entry.name);
    return names;
  }
  void set(void* target, std::size_t index) const override { as<E>(target) = enum_names(E{})[index].value; }
  std::string_view name_of(const void* value) const override { return enum_name(as<E>(value)); }
};

template <class T>
struct TypeOf<std::optional<T>> final : OptionalType {
  TypeOf() : OptionalType(json_type<T>()) {}
  void reset(void* target) const override { as<std::optional<T>>(target).reset(); }
  void* emplace(void* target) const override { return &as<std::optional<T>>(target).emplace(); }
  const void* get(const void* value) const override {
    const auto& optional = as<std::optional<T>>(value);
    return optional ? &*optional : nullptr;
  }
};

template <class T>
struct TypeOf<std::vector<T>> final : ListType {
  TypeOf() : ListType(json_type<T>()) {}
  void clear(void* target) const override { as<std::vector<T>>(target).clear(); }
  void* append(void* target) const override { return &as<std::vector<T>>(target).emplace_back(); }
  void for_each(const void* value, const std::function<void(const void*)>& visit) const override {
    for (const T& element : as<std::vector<T>>(value)) visit(&element);
  }
};

template <class T>
struct TypeOf<std::map<std::string, T>> final : MapType {
  using Map = std::map<std::string, T>;
  TypeOf() : MapType(json_type<T>()) {}
  void clear(void* target) const override { as<Map>(target).clear(); }
  void* insert(void* target, const std::string& key) const override { return &as<Map>(target)[key]; }
  void for_each(const void* value, const std::function<void(const std::string&, const void*)>& visit) const override {
    for (const auto& [key, element] : as<Map>(value)) visit(key, &element);
  }
};

template <class A, class B>
struct TypeOf<std::pair<A, B>> final : PairType {
  using Pair = std::pair<A, B>;
  TypeOf() : PairType(json_type<A>(), json_type<B>()) {}
  std::pair<void*, void*> members(void* target) const override {
    return {&as<Pair>(target).first, &as<Pair>(target).second};
  }
  std::pair<const void*, const void*> members(const void* value) const override {
    return {&as<Pair>(value).first, &as<Pair>(value).second};
  }
};

template <Record T>
struct TypeOf<T> final : RecordType {
  TypeOf() : RecordType(typeid(T), tag_of_record(), describe_fields(), &defaults()) {}

  void validate(const void* record, const ConfigPath& path) const override {
    if constexpr (requires(const T& r) { r.validate(path); }) as<T>(record).validate(path);
  }

 private:
  static const T& defaults() {
    static const auto kDefaults = std::make_unique<const T>();
    return *kDefaults;
  }
  static constexpr Tag tag_of_record() {
    if constexpr (requires { T::kTag; }) {
      return T::kTag;
    } else {
      return {};
    }
  }
  static std::vector<FieldDescription> describe_fields() {
    std::vector<FieldDescription> descriptions;
    const auto* begin = reinterpret_cast<const std::byte*>(&defaults());
    for_each_field<T>([&]<class Value>(const Field<T, Value>& field) {
      const auto* member = reinterpret_cast<const std::byte*>(&(defaults().*field.member));
      descriptions.push_back({.name = field.name,
                              .offset = static_cast<std::size_t>(member - begin),
                              .type = &json_type<Value>(),
                              .is_required = field.is_required,
                              .range = field.range});
    });
    return descriptions;
  }
};

template <Record... Alternatives>
struct TypeOf<std::variant<Alternatives...>> final : UnionType {
  using Variant = std::variant<Alternatives...>;
  TypeOf() : UnionType({&record_type<Alternatives>()...}) {}

  void* emplace(void* target, std::size_t index) const override {
    void* alternative = nullptr;
    std::size_t i = 0;
    ((i++ == index ? void(alternative = &as<Variant>(target).template emplace<Alternatives>()) : void()), ...);
    return alternative;
  }
  std::size_t index_of(const void* value) const override { return as<Variant>(value).index(); }
  const void* get(const void* value) const override {
    return std::visit([](const auto& alternative) { return static_cast<const void*>(&alternative); },
                      as<Variant>(value));
  }
};

}  // namespace detail

template <class T>
const ValueType& json_type() {
  if constexpr (requires { sizeof(detail::TypeOf<T>); }) {
    static const detail::TypeOf<T> type;
    return type;
  } else {
    static_assert(!std::is_enum_v<T>,
                  "this enum is no type of a field: list its names in `constexpr auto enum_names(Enum)` beside it "
                  "(d9d/base/enum_names.h)");
    static_assert(!std::is_arithmetic_v<T>, "this number is no type of a field: use std::int64_t, double or bool");
    static_assert(std::is_enum_v<T> || std::is_arithmetic_v<T>,
                  "this class is no type of a field: list its members in `static constexpr auto fields()` (of a "
                  "std::variant, those of each alternative); d9d/base/config/describe.h names all types of fields");
    return json_type<bool>();
  }
}

}  // namespace d9d
