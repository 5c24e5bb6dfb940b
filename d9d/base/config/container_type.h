// JSON forms of std::optional (null), std::vector and std::pair (lists) and std::map by string (objects). The
// subclasses in describe.h know the C++ type.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/config/value_type.h"

namespace d9d {

class OptionalType : public ValueType {
 public:
  explicit OptionalType(const ValueType& inner) : inner_(inner) {}

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

 private:
  virtual void reset(void* target) const = 0;
  [[nodiscard]] virtual void* emplace(void* target) const = 0;
  [[nodiscard]] virtual const void* get(const void* value) const = 0;  // null when empty

  const ValueType& inner_;
};

class ListType : public ValueType {
 public:
  explicit ListType(const ValueType& element) : element_(element) {}

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

 private:
  virtual void clear(void* target) const = 0;
  [[nodiscard]] virtual void* append(void* target) const = 0;
  virtual void for_each(const void* value, const std::function<void(const void*)>& visit) const = 0;

  const ValueType& element_;
};

class MapType : public ValueType {
 public:
  explicit MapType(const ValueType& element) : element_(element) {}

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

 private:
  virtual void clear(void* target) const = 0;
  [[nodiscard]] virtual void* insert(void* target, const std::string& key) const = 0;
  virtual void for_each(const void* value, const std::function<void(const std::string&, const void*)>& visit) const = 0;

  const ValueType& element_;
};

// A list of exactly two values.
class PairType : public ValueType {
 public:
  PairType(const ValueType& first, const ValueType& second) : first_(first), second_(second) {}

  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override;
  [[nodiscard]] Json write(const void* value) const override;
  [[nodiscard]] Json schema(const Range& range) const override;

 private:
  [[nodiscard]] virtual std::pair<void*, void*> members(void* target) const = 0;
  [[nodiscard]] virtual std::pair<const void*, const void*> members(const void* value) const = 0;

  const ValueType& first_;
  const ValueType& second_;
};

}  // namespace d9d
