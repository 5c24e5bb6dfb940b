// Computes the key of a microbatch's CUDA graph from its structure, shapes, strides, dtypes and host values.
// Microbatches with different keys need different graphs.
//
// Example
//   if (const auto key = graph_key(batch, device)) ++num_seen[*key];
#pragma once

#include <optional>
#include <sstream>
#include <string>

#include "d9d/core/tree/tree.h"

namespace d9d {
namespace detail {

// Whether T is a tree of tensors and plain values. Only such types have keys.
template <class T>
struct IsPlain : std::bool_constant<std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                                    std::is_same_v<T, std::monostate> || std::is_same_v<T, at::Tensor>> {};
template <class T>
struct IsPlain<std::vector<T>> : IsPlain<T> {};
template <class T, class Less>
struct IsPlain<std::map<std::string, T, Less>> : IsPlain<T> {};
template <class T>
struct IsPlain<std::optional<T>> : IsPlain<T> {};
template <class T, std::size_t N>
struct IsPlain<std::array<T, N>> : IsPlain<T> {};
template <class... T>
struct IsPlain<std::variant<T...>> : std::conjunction<IsPlain<T>...> {};
template <class... T>
struct IsPlain<std::tuple<T...>> : std::conjunction<IsPlain<T>...> {};
template <class A, class B>
struct IsPlain<std::pair<A, B>> : std::conjunction<IsPlain<A>, IsPlain<B>> {};
template <class T, class Value>
struct IsPlain<Field<T, Value>> : IsPlain<Value> {};
template <Record T>
struct IsPlain<T> : IsPlain<decltype(T::fields())> {};

// Serialises a microbatch into its key.
class GraphKeyWriter {
 public:
  explicit GraphKeyWriter(c10::Device device) : device_(device) { out_.precision(17); }

  void write(const at::Tensor& tensor);
  template <class T>
  void write(const T& value) {
    if constexpr (Record<T>) {
      for_each_field<T>([&](const auto& field) { write(value.*field.member); });
    } else if constexpr (kIsOptional<T>) {
      out_ << (value ? "some " : "none ");
      if (value) write(*value);
    } else if constexpr (kIsVariant<T>) {
      out_ << '#' << value.index() << ' ';
      std::visit([this](const auto& alternative) { write(alternative); }, value);
    } else if constexpr (kIsMap<T>) {
      out_ << '{' << value.size() << ' ';
      for (const auto& [key, child] : value) write(key), write(child);
    } else if constexpr (kIsVector<T>) {
      out_ << '[' << value.size() << ' ';
      for (const typename T::value_type& child : value) write(child);
    } else if constexpr (std::is_same_v<T, std::string>) {
      out_ << value.size() << ':' << value << ' ';
    } else if constexpr (std::is_enum_v<T>) {
      out_ << static_cast<std::int64_t>(value) << ' ';
    } else if constexpr (std::is_arithmetic_v<T>) {
      out_ << +value << ' ';
    } else if constexpr (!std::is_same_v<T, std::monostate>) {  // tuple, pair, array
      std::apply([this](const auto&... children) { (write(children), ...); }, value);
    }
  }

  // Returns the key; none if a tensor is not on the device, not strided, or requires a gradient.
  [[nodiscard]] std::optional<std::string> key() const;

 private:
  std::ostringstream out_;
  c10::Device device_;
  bool has_key_ = true;
};

}  // namespace detail

// Whether values of T consist only of tensors and plain values (numbers, strings, enums).
template <class T>
inline constexpr bool kHasGraphKey = detail::IsPlain<T>::value;

// Returns the key of a microbatch. Microbatches that differ only in the values of their tensors have equal keys. None
// if a graph cannot read the microbatch, because a tensor is not on the device, is not strided, or requires a gradient.
template <class T>
[[nodiscard]] std::optional<std::string> graph_key(const T& microbatch, c10::Device device) {
  detail::GraphKeyWriter writer(device);
  writer.write(microbatch);
  return writer.key();
}

}  // namespace d9d
