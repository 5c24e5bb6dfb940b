// The boxes of a tensor that a rank holds, as views of its local tensor. Local; no communication.
//
// Example
//   for (const HeldPart& part : held_parts(weight)) part.values.copy_(view_of(whole, whole_box(shape), part.box));
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/core/dtensor/layout.h"

namespace d9d {

struct HeldPart {
  LocalBox box;       // position and sizes in the whole tensor
  at::Tensor values;  // view of the local tensor, in the box's shape
};

// Returns the boxes of held_boxes(). On a mesh without axes this is one box, the whole tensor.
[[nodiscard]] std::vector<HeldPart> held_parts(const DTensor& tensor);

[[nodiscard]] LocalBox whole_box(const std::vector<std::int64_t>& shape);

// Returns the elements of the box `inner` as a view of `values`, which has the elements of the box `outer`.
[[nodiscard]] at::Tensor view_of(const at::Tensor& values, const LocalBox& outer, const LocalBox& inner);

}  // namespace d9d
