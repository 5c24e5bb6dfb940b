#include "tests/layout/assembler.h"

#include <cmath>

#include <ATen/ATen.h>

namespace d9d::test {

void Assembler::add(const std::string& name, const DTensor& part) {
  const std::lock_guard lock(mutex_);
  at::Tensor& whole = whole_[name];
  if (!whole.defined()) whole = at::full(part.global_shape, std::nan(""), part.local.options());
  const LocalBox box = local_box(part.global_shape, part.mesh, part.placements);
  const FlatRange range = flat_range(box.numel(), part.mesh, part.placements);
  at::Tensor target = whole;
  for (std::size_t dim = 0; dim < box.start.size(); ++dim) {
    target = target.narrow(static_cast<std::int64_t>(dim), box.start[dim], box.sizes[dim]);
  }
  at::Tensor flat = target.reshape({-1}).clone();
  const at::Tensor place = flat.narrow(0, range.begin, range.numel());
  const at::Tensor values = part.local.reshape({-1});
  const bool is_same = ((place == values) | place.isnan()).all().item<bool>();
  if (!is_same) faults_.push_back("replicas of " + name + " differ");
  place.copy_(values);
  target.copy_(flat.view(target.sizes()));
}

}  // namespace d9d::test
