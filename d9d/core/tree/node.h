// What a tree of tensors is made of: at::Tensor leaves inside records, tuples, pairs, arrays, vectors, string-keyed
// maps, optionals and variants, nested at will. Everything else (numbers, names, vectors of numbers) is a value that a
// tree carries along: it is no node and no leaf. tree.h has the functions that programs use.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"

namespace d9d {

namespace detail {

template <class T>
struct HoldsTensors : std::false_type {};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};
template <class T>
struct HoldsTensors<std::vector<T>> : HoldsTensors<T> {};
template <class T, class Less>
struct HoldsTensors<std::map<std::string, T, Less>> : HoldsTensors<T> {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class T, std::size_t N>
struct HoldsTensors<std::array<T, N>> : HoldsTensors<T> {};
template <class... T>
struct HoldsTensors<std::variant<T...>> : std::disjunction<HoldsTensors<T>...> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};
template <class T, class Value>
struct HoldsTensors<Field<T, Value>> : HoldsTensors<Value> {};
template <Record T>
struct HoldsTensors<T> : HoldsTensors<decltype(T::fields())> {};

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsMap = false;
template <class T, class Less>
inline constexpr bool kIsMap<std::map<std::string, T, Less>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsVariant = false;
template <class... T>
inline constexpr bool kIsVariant<std::variant<T...>> = true;

}  // namespace detail

// A type that can hold at least one tensor leaf.
template <class T>
concept TensorTree = detail::HoldsTensors<std::remove_cv_t<T>>::value;

namespace detail {

// Calls visit(name, child) for the children that are trees themselves, in leaf order. `name` is a std::string_view, or
// a std::size_t index; it is empty where the child stands in its parent's place (optional, variant).
template <TensorTree Node, class Visit>
void for_each_child(Node& node, Visit&& visit) {
  using T = std::remove_cv_t<Node>;
  const auto visit_tree = [&visit](auto name, auto& child) {
    if constexpr (TensorTree<std::remove_reference_t<decltype(child)>>) visit(name, child);
  };
  if constexpr (Record<T>) {
    for_each_field<T>([&](const auto& field) { visit_tree(field.name, node.*field.member); });
  } else if constexpr (kIsVector<T>) {
    for (std::size_t i = 0; i < node.size(); ++i) visit_tree(i, node[i]);
  } else if constexpr (kIsMap<T>) {
    for (auto& [key, child] : node) visit_tree(std::string_view(key), child);
  } else if constexpr (kIsOptional<T>) {
    if (node) visit_tree(std::string_view(), *node);
  } else if constexpr (kIsVariant<T>) {
    std::visit([&](auto& child) { visit_tree(std::string_view(), child); }, node);
  } else if constexpr (!std::is_same_v<T, at::Tensor>) {  // tuple, pair, array
    std::apply([&, index = std::size_t{0}](auto&... children) mutable { (visit_tree(index++, children), ...); }, node);
  }
}

// "heads" + "lm" -> "heads.lm", "layers" + 3 -> "layers.3".
[[nodiscard]] std::string join_path(std::string_view parent, std::string_view name);
[[nodiscard]] std::string join_path(std::string_view parent, std::size_t index);

// Calls visit(path, node) for the node itself and everything below it, parents first.
template <TensorTree Node, class Visit>
void walk(const std::string& path, Node& node, Visit& visit) {
  visit(path, node);
  for_each_child(node, [&](auto name, auto& child) { walk(join_path(path, name), child, visit); });
}

// What distinguishes two nodes of the same place: "tensor", "none", "list of 3", "map of {aux, lm}".
template <TensorTree Node>
[[nodiscard]] std::string describe_node(const Node& node) {
  if constexpr (std::is_same_v<Node, at::Tensor>) {
    return "tensor";
  } else if constexpr (kIsVector<Node>) {
    return "list of " + std::to_string(node.size());
  } else if constexpr (kIsMap<Node>) {
    std::string keys;
    for (const auto& entry : node) keys += (keys.empty() ? "" : ", ") + entry.first;
    return "map of {" + keys + "}";
  } else if constexpr (kIsOptional<Node>) {
    return node ? "some" : "none";
  } else if constexpr (kIsVariant<Node>) {
    return "alternative " + std::to_string(node.index());
  } else if constexpr (Record<Node>) {
    return "record";
  } else {
    return "tuple of " + std::to_string(std::tuple_size_v<Node>);
  }
}

}  // namespace detail
}  // namespace d9d
