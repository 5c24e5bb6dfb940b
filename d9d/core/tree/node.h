// The nodes of a tree of tensors: at::Tensor leaves inside records, tuples, pairs, arrays, vectors, string-keyed maps,
// optionals and variants, nested at will. Everything else (numbers, names, vectors of numbers) is a value that the tree
// carries along; it is neither node nor leaf. tree.h has the functions that programs use.
#pragma once

#include <algorithm>
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

// Whether T satisfies Match::Of, or can hold a T inside that does.
template <class Match, class T>
struct HoldsInside : std::false_type {};
template <class Match, class T>
struct Holds : std::disjunction<typename Match::template Of<T>, HoldsInside<Match, T>> {};
template <class Match, class T>
struct HoldsInside<Match, std::vector<T>> : Holds<Match, T> {};
template <class Match>
struct HoldsInside<Match, std::vector<bool>> : std::false_type {};  // its elements cannot be referred to
template <class Match, class T, class Less>
struct HoldsInside<Match, std::map<std::string, T, Less>> : Holds<Match, T> {};
template <class Match, class T>
struct HoldsInside<Match, std::optional<T>> : Holds<Match, T> {};
template <class Match, class T, std::size_t N>
struct HoldsInside<Match, std::array<T, N>> : Holds<Match, T> {};
template <class Match, class... T>
struct HoldsInside<Match, std::variant<T...>> : std::disjunction<Holds<Match, T>...> {};
template <class Match, class... T>
struct HoldsInside<Match, std::tuple<T...>> : std::disjunction<Holds<Match, T>...> {};
template <class Match, class A, class B>
struct HoldsInside<Match, std::pair<A, B>> : std::disjunction<Holds<Match, A>, Holds<Match, B>> {};
template <class Match, class T, class... Value>
struct HoldsInside<Match, std::tuple<Field<T, Value>...>> : std::disjunction<Holds<Match, Value>...> {};
template <class Match, Record T>
struct HoldsInside<Match, T> : HoldsInside<Match, decltype(T::fields())> {};

template <class Leaf>
struct IsA {
  template <class T>
  using Of = std::is_same<Leaf, T>;
};

template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;

// A struct whose members no fields() function lists: tensors in it would not be found.
struct IsUnlisted {
  template <class T>
  using Of = std::bool_constant<std::is_class_v<T> && std::is_aggregate_v<T> && !Record<T> && !std::is_empty_v<T> &&
                                !kIsArray<T>>;
};

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

// A type that is Leaf, or can hold at least one.
template <class T, class Leaf>
concept TreeOf = detail::Holds<detail::IsA<Leaf>, std::remove_cv_t<T>>::value;

// A type in which a tree finds all tensors: neither it nor any struct inside it lacks a list of its members.
template <class T>
concept ListsItsTensors = !detail::Holds<detail::IsUnlisted, std::remove_cv_t<T>>::value;

// A type that can hold at least one tensor leaf.
template <class T>
concept TensorTree = TreeOf<T, at::Tensor>;

namespace detail {

// The entries of a map sorted by key, whatever the order of the map.
template <class Map>
[[nodiscard]] auto entries_by_key(Map& map) {
  std::vector<decltype(&*map.begin())> entries;
  entries.reserve(map.size());
  for (auto& entry : map) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  return entries;
}

// Calls visit(name, child) for those children that are trees of Leaf themselves, in leaf order. `name` is a
// std::string_view, or a std::size_t index; it is empty if the child takes its parent's place (optional, variant).
template <class Leaf = at::Tensor, TreeOf<Leaf> Node, class Visit>
void for_each_child(Node& node, Visit&& visit) {
  using T = std::remove_cv_t<Node>;
  const auto visit_tree = [&visit](auto name, auto& child) {
    if constexpr (TreeOf<std::remove_reference_t<decltype(child)>, Leaf>) visit(name, child);
  };
  if constexpr (Record<T>) {
    for_each_field<T>([&](const auto& field) { visit_tree(field.name, node.*field.member); });
  } else if constexpr (kIsVector<T>) {
    for (std::size_t i = 0; i < node.size(); ++i) visit_tree(i, node[i]);
  } else if constexpr (kIsMap<T>) {
    for (auto* entry : entries_by_key(node)) visit_tree(std::string_view(entry->first), entry->second);
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

// Returns a text that differs for nodes of different structure: "tensor", "none", "list of 3", "map of {aux, lm}".
template <TensorTree Node>
[[nodiscard]] std::string describe_node(const Node& node) {
  if constexpr (std::is_same_v<Node, at::Tensor>) {
    return "tensor";
  } else if constexpr (kIsVector<Node>) {
    return "list of " + std::to_string(node.size());
  } else if constexpr (kIsMap<Node>) {
    std::string keys;
    for (const auto* entry : entries_by_key(node)) keys += (keys.empty() ? "" : ", ") + entry->first;
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
