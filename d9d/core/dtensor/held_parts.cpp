#include "d9d/core/dtensor/held_parts.h"

#include "d9d/base/check.h"
#include "d9d/core/dtensor/box_intersection.h"

namespace d9d {

LocalBox whole_box(const std::vector<std::int64_t>& shape) {
  return {.start = std::vector<std::int64_t>(shape.size()), .sizes = shape};
}

std::vector<HeldPart> held_parts(const DTensor& tensor) {
  std::vector<LocalBox> boxes = {whole_box(tensor.global_shape)};
  if (!tensor.mesh.axes().empty()) {
    boxes = held_boxes(tensor.global_shape, tensor.mesh, tensor.placements, tensor.mesh.coordinate());
  }
  if (boxes.size() == 1 && tensor.local.sizes() == boxes[0].sizes) return {{.box = boxes[0], .values = tensor.local}};
  std::vector<HeldPart> held;
  std::int64_t begin = 0;
  const at::Tensor flat = tensor.local.view({-1});
  for (const LocalBox& box : boxes) {
    held.push_back({.box = box, .values = flat.narrow(0, begin, box.numel()).view(box.sizes)});
    begin += box.numel();
  }
  D9D_ASSERT(begin == tensor.local.numel(), "the boxes of a tensor of shape ", at::IntArrayRef(tensor.global_shape),
             " do not cover this rank's part");
  return held;
}

at::Tensor view_of(const at::Tensor& values, const LocalBox& outer, const LocalBox& inner) {
  at::Tensor view = values;
  for (std::size_t d = 0; d < outer.start.size(); ++d) {
    view = view.narrow(static_cast<std::int64_t>(d), inner.start[d] - outer.start[d], inner.sizes[d]);
  }
  return view;
}

}  // namespace d9d
