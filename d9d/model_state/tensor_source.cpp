#include "d9d/model_state/tensor_source.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {

TensorSource tensor_source(std::string name, at::Tensor tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .read = [tensor = std::move(tensor)] {
            return tensor;
          }};
}

std::int64_t num_bytes(const TensorSource& source) {
  if (source.dtype == at::ScalarType::Undefined) return 0;
  return c10::multiply_integers(source.shape) * static_cast<std::int64_t>(c10::elementSize(source.dtype));
}

at::Tensor read_checked(const TensorSource& source) {
  at::Tensor tensor = source.read();
  D9D_CHECK(tensor.defined() && tensor.scalar_type() == source.dtype && tensor.sizes() == source.shape, StateError,
            "[model_state::tensor_source] expected tensor '", source.name, "' to be ", source.dtype, " of shape ",
            at::IntArrayRef(source.shape), ", got ",
            tensor.defined() ? cat(tensor.scalar_type(), " of shape ", tensor.sizes()) : "an undefined tensor",
            ". Describe the tensor that the source reads.");
  return tensor;
}

std::vector<BoxRead> reads_of(const TensorSource& source, const LocalBox& box, const at::Tensor& into) {
  std::vector<BoxRead> reads;
  for (const StoredPart& part : source.stored) {
    for (const BoxIntersection& common : intersections({part.box}, {box})) {
      LocalBox within = common.box;
      for (std::size_t d = 0; d < within.start.size(); ++d) within.start[d] -= part.box.start[d];
      reads.push_back({.from = part.values, .box = within, .into = view_of(into, box, common.box)});
    }
  }
  return reads;
}

}  // namespace d9d
