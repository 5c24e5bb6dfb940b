// The leaves of a mapper (mapper/state_mapper.h). Each is one group. All but the last ones only move or convert
// elements: chains of them are one copy, and a rank reads what it holds.
//
// Example
//   mapper::sequential({mapper::parallel({mapper::transpose("w1", 0, 1), mapper::transpose("w2", 0, 1)}),
//                       mapper::stack({"w1", "w2"}, "experts", 0)});
//
// Dims may be negative. A dim or a shape that does not fit is a StateError when the mapper meets the tensors, before
// any data is read.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/model_state/mapper/state_mapper.h"

namespace d9d::mapper {

[[nodiscard]] StateMapper identity(const std::string& name);
[[nodiscard]] StateMapper rename(const std::string& from, const std::string& to);
// Renames each of the names: each part that `pattern`, a regular expression (base/name_regex.h), matches is replaced by
// `replacement`, in which $1 is the first group. A name without a match stays. Throws ConfigError for an invalid
// pattern.
[[nodiscard]] StateMapper rename_matching(const std::vector<std::string>& names, const std::string& pattern,
                                          const std::string& replacement);
// Takes `<parent>.<name>` as `<name>`, for each of the names.
[[nodiscard]] StateMapper select_child_modules(const std::vector<std::string>& names, const std::string& parent);
// The same tensor under each of the names, which may include its own.
[[nodiscard]] StateMapper copy(const std::string& from, const std::vector<std::string>& to);

[[nodiscard]] StateMapper transpose(const std::string& name, std::int64_t dim0, std::int64_t dim1);
[[nodiscard]] StateMapper unsqueeze(const std::string& name, std::int64_t dim);
[[nodiscard]] StateMapper squeeze(const std::string& name, std::optional<std::int64_t> dim);  // none: all of size 1
[[nodiscard]] StateMapper cast(const std::string& name, at::ScalarType dtype);
// The same for a tensor of a floating-point type that configurations name (d9d/base/dtype.h); others stay.
[[nodiscard]] StateMapper cast_floats(const std::string& name, at::ScalarType dtype);
// Turns wrong types into one compile error each.
template <class T>
requires(std::is_enum_v<T> && !std::is_same_v<T, at::ScalarType>) StateMapper cast(const std::string&, T) {
  static_assert(sizeof(T) == 0,
                "cast takes LibTorch's at::ScalarType: write cast(name, d9d::to_scalar_type(dtype)) "
                "(d9d/core/dtype/scalar_type.h)");
  return identity("");
}
template <std::convertible_to<std::string> Name>
StateMapper stack(const Name&, const std::string&, std::int64_t) {
  static_assert(sizeof(Name) == 0, "stack takes the list of names that become one: write stack({...}, to, dim)");
  return identity("");
}

[[nodiscard]] StateMapper stack(const std::vector<std::string>& from, const std::string& to, std::int64_t dim);
[[nodiscard]] StateMapper unstack(const std::string& from, const std::vector<std::string>& to, std::int64_t dim);
[[nodiscard]] StateMapper concatenate(const std::vector<std::string>& from, const std::string& to, std::int64_t dim);
// Equal parts; the last may be shorter. Throws StateError if there are fewer parts than names.
[[nodiscard]] StateMapper chunk(const std::string& from, const std::vector<std::string>& to, std::int64_t dim);
// Parts of the given sizes, which add up to the dim's.
[[nodiscard]] StateMapper split(const std::string& from, const std::vector<std::pair<std::string, std::int64_t>>& to,
                                std::int64_t dim);

// A function by the user that takes whole tensors. It is also called on meta tensors, to determine shapes and dtypes,
// and must not change its inputs. A group that contains it is held in memory as a whole.
[[nodiscard]] StateMapper function(
    const std::string& name, const std::vector<std::string>& from, const std::vector<std::string>& to,
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>& apply);

template <class Apply>
requires(!std::is_invocable_r_v<std::vector<at::Tensor>, const Apply&, const std::vector<at::Tensor>&>) StateMapper
    function(const std::string&, const std::vector<std::string>&, const std::vector<std::string>&, const Apply&) {
  static_assert(
      sizeof(Apply) == 0,
      "function takes a callable `std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)`: one tensor "
      "for each name of `from`, and for each of `to`");
  return identity("");
}

// Local. Keeps this rank's part of a tensor that every rank has. Only at the end of a chain.
[[nodiscard]] StateMapper distribute(const std::string& name, const DeviceMesh& mesh, const Placements& placements);
// Collective over the tensor's mesh. Makes a distributed tensor whole on every rank. StateError for a whole one.
[[nodiscard]] StateMapper gather_full_tensor(const std::string& name);

}  // namespace d9d::mapper
