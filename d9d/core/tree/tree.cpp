#include "d9d/core/tree/tree.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {

namespace detail {

std::string join_path(std::string_view parent, std::string_view name) {
  if (parent.empty() || name.empty()) return std::string(parent.empty() ? name : parent);
  return cat(parent, ".", name);
}

std::string join_path(std::string_view parent, std::size_t index) { return join_path(parent, std::to_string(index)); }

void check_num_leaves(std::size_t expected, std::size_t actual) {
  D9D_CHECK(expected == actual, StateError, "[core::tree_unflatten] expected ", expected, " leaves, got ", actual,
            ". Pass as many tensors as tree_flatten returned.");
}

namespace {
std::string display(const std::string& path) { return path.empty() ? "the root" : "'" + path + "'"; }
}  // namespace
}  // namespace detail

void check_same_structure(const TreeStructure& expected, const TreeStructure& actual) {
  const TreeNode end{.path = "the end", .kind = "nothing"};
  for (std::size_t i = 0; i < std::max(expected.size(), actual.size()); ++i) {
    const TreeNode& wanted = i < expected.size() ? expected[i] : end;
    const TreeNode& found = i < actual.size() ? actual[i] : end;
    D9D_CHECK(wanted == found, StateError, "[core::check_same_structure] expected ", wanted.kind, " at ",
              detail::display(wanted.path), ", got ", found.kind, " at ", detail::display(found.path),
              ". Both trees must have the same structure.");
  }
}

}  // namespace d9d
