#include "d9d/core/tree/tree.h"

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
  for (std::size_t i = 0; i < expected.size() || i < actual.size(); ++i) {
    if (i < expected.size() && i < actual.size() && expected[i] == actual[i]) continue;
    D9D_CHECK(i < actual.size(), StateError, "[core::check_same_structure] expected a ", expected[i].kind, " at ",
              detail::display(expected[i].path), ", got nothing. Both trees must have the same structure.");
    D9D_CHECK(i < expected.size(), StateError, "[core::check_same_structure] expected nothing at ",
              detail::display(actual[i].path), ", got a ", actual[i].kind,
              ". Both trees must have the same structure.");
    D9D_CHECK(false, StateError, "[core::check_same_structure] expected ", expected[i].kind, " at ",
              detail::display(expected[i].path), ", got ", actual[i].kind, " at ", detail::display(actual[i].path),
              ". Both trees must have the same structure.");
  }
}

}  // namespace d9d
