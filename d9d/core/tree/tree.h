// Functions over trees of tensors (node.h says what a tree is): batches, the inputs and outputs of a stage, states.
//
// Example
//   struct Batch {
//     at::Tensor input_ids;                              // [B, S] int64
//     std::map<std::string, at::Tensor> labels;          // head name -> [B, S] int64
//     static constexpr auto fields() {
//       return d9d::record<Batch>(d9d::field("input_ids", &Batch::input_ids), d9d::field("labels", &Batch::labels));
//     }
//   };
//   Batch on_device = d9d::tree_map([&](const at::Tensor& leaf) { return leaf.to(device); }, batch);
//   for (const auto& [path, leaf] : d9d::tree_leaves_with_path(batch)) ...   // "input_ids", "labels.lm"
//
// Leaf order is a wire format: record fields in declaration order, map children in sorted key order, lists and tuples
// by position. An empty optional is structure without leaves. An undefined tensor is a leaf.
#pragma once

#include "d9d/core/tree/node.h"

namespace d9d {

namespace detail {

// A function of leaves without its type, so that the code which walks a tree is compiled once for each type of tree and
// not for each use. The function is borrowed.
class LeafVisit {
 public:
  template <class F>
  explicit LeafVisit(F& f)
      : f_(&f), call_([](void* function, at::Tensor& leaf) { (*static_cast<F*>(function))(leaf); }) {}
  void operator()(at::Tensor& leaf) const { call_(f_, leaf); }

 private:
  void* f_;
  void (*call_)(void* function, at::Tensor& leaf);
};

template <TensorTree Tree>
void visit_leaves(Tree& tree, const LeafVisit& visit) {
  if constexpr (std::is_same_v<Tree, at::Tensor>) {
    visit(tree);
  } else {
    for_each_child(tree, [&visit](auto, auto& child) { visit_leaves(child, visit); });
  }
}

}  // namespace detail

// Calls f(leaf) for each leaf. In a tree that is not const f may assign the leaf.
template <TensorTree Tree, class F>
void tree_for_each_leaf(Tree& tree, F&& f) {
  if constexpr (std::is_const_v<Tree>) {
    auto read = [&f](at::Tensor& leaf) { f(std::as_const(leaf)); };
    detail::visit_leaves(const_cast<std::remove_const_t<Tree>&>(tree), detail::LeafVisit(read));  // only reads
  } else {
    auto visit = [&f](at::Tensor& leaf) { f(leaf); };
    detail::visit_leaves(tree, detail::LeafVisit(visit));
  }
}

template <TensorTree Tree>
[[nodiscard]] std::vector<at::Tensor> tree_leaves(const Tree& tree) {
  std::vector<at::Tensor> leaves;
  tree_for_each_leaf(tree, [&leaves](const at::Tensor& leaf) { leaves.push_back(leaf); });
  return leaves;
}

// Returns a tree of the same structure with each leaf replaced by f(leaf); values are copied.
template <TensorTree Tree, class F>
[[nodiscard]] Tree tree_map(F&& f, const Tree& tree) {
  Tree result = tree;
  tree_for_each_leaf(result, [&f](at::Tensor& leaf) { leaf = f(std::as_const(leaf)); });
  return result;
}

// Like tree_map(f, tree), but calls is_leaf(node) at each node, from the root on. If it returns true, f gets the node
// as a whole, and nodes below it are not visited. Both functions must accept every node type of the tree:
//   tree_map([](auto node) { ... return node; }, batch, [](const auto& node) { return is_head<decltype(node)>; });
template <TensorTree Tree, class F, class IsLeaf>
[[nodiscard]] Tree tree_map(F&& f, const Tree& tree, const IsLeaf& is_leaf) {
  Tree result = tree;
  const auto visit = [&](const auto& self, auto& node) -> void {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(node)>, at::Tensor>) {
      node = f(std::as_const(node));
    } else if (is_leaf(std::as_const(node))) {
      node = f(std::as_const(node));
    } else {
      detail::for_each_child(node, [&](auto, auto& child) { self(self, child); });
    }
  };
  visit(visit, result);
  return result;
}

// Returns a tree in which each value of type T is replaced by f(value), carried values included; others are copied:
//   tree_map_only<std::int64_t>([](std::int64_t n) { return n + 1; }, batch)
// A T that has children, such as a record, is passed as a whole.
template <class T, TreeOf<T> Tree, class F>
[[nodiscard]] Tree tree_map_only(F&& f, const Tree& tree) {
  Tree result = tree;
  const auto visit = [&](const auto& self, auto& node) -> void {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(node)>, T>) {
      node = f(std::as_const(node));
    } else {
      detail::for_each_child<T>(node, [&](auto, auto& child) { self(self, child); });
    }
  };
  visit(visit, result);
  return result;
}

// Pairs of path ("heads.lm.labels", "layers.3"; empty for a tree that is one tensor) and leaf, in leaf order.
template <TensorTree Tree>
[[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> tree_leaves_with_path(const Tree& tree) {
  std::vector<std::pair<std::string, at::Tensor>> leaves;
  auto visit = [&leaves](const std::string& path, const auto& node) {
    if constexpr (std::is_same_v<std::decay_t<decltype(node)>, at::Tensor>) leaves.emplace_back(path, node);
  };
  detail::walk("", tree, visit);
  return leaves;
}

// One node of a structure: its path, and its describe_node().
struct TreeNode {
  std::string path;
  std::string kind;
  [[nodiscard]] bool operator==(const TreeNode&) const = default;
};
using TreeStructure = std::vector<TreeNode>;

// The structure of a tree without tensors and values, parents first. Leaves of trees with equal structures correspond.
template <TensorTree Tree>
[[nodiscard]] TreeStructure tree_structure(const Tree& tree) {
  TreeStructure structure;
  auto visit = [&structure](const std::string& path, const auto& node) {
    structure.push_back({.path = path, .kind = detail::describe_node(node)});
  };
  detail::walk("", tree, visit);
  return structure;
}

// Throws StateError that names the first path where the structures differ.
void check_same_structure(const TreeStructure& expected, const TreeStructure& actual);
template <TensorTree A, TensorTree B>
void check_same_structure(const A& expected, const B& actual) {
  check_same_structure(tree_structure(expected), tree_structure(actual));
}

// A tree whose leaves are undefined; tree_unflatten() puts leaves into it. Carried values are kept.
template <TensorTree Tree>
struct TreeSpec {
  Tree skeleton;  // every leaf undefined
  [[nodiscard]] bool operator==(const TreeSpec& other) const {
    return tree_structure(skeleton) == tree_structure(other.skeleton);
  }
};

template <TensorTree Tree>
struct FlatTree {
  std::vector<at::Tensor> leaves;
  TreeSpec<Tree> spec;
};

template <TensorTree Tree>
[[nodiscard]] FlatTree<Tree> tree_flatten(const Tree& tree) {
  return {.leaves = tree_leaves(tree), .spec = {tree_map([](const at::Tensor&) { return at::Tensor(); }, tree)}};
}

namespace detail {
void check_num_leaves(std::size_t expected, std::size_t actual);
}

// The inverse of tree_flatten. Throws StateError if the number of leaves is not that of the spec.
template <TensorTree Tree>
[[nodiscard]] Tree tree_unflatten(const TreeSpec<Tree>& spec, const std::vector<at::Tensor>& leaves) {
  detail::check_num_leaves(tree_leaves(spec.skeleton).size(), leaves.size());
  auto next = leaves.begin();
  return tree_map([&next](const at::Tensor&) { return *next++; }, spec.skeleton);
}

}  // namespace d9d
