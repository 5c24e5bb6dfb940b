// What a rank must hold under a layout, derived from a plain tensor on one thread by torch.chunk, axis by axis.
//
// Example
//   EXPECT_TRUE(at::equal(x.local, test::local_of(full, x.mesh, x.placements)));
#pragma once

#include <ATen/ATen.h>

#include "d9d/core/dtensor/dtensor.h"

namespace d9d::test {

// Part `index` of torch.chunk(num_parts) of the units of a shard. torch.chunk itself omits empty parts.
[[nodiscard]] inline at::Tensor chunk_of(const at::Tensor& tensor, const Shard& shard, std::int64_t index,
                                         std::int64_t num_parts) {
  const at::Tensor none = tensor.narrow(shard.dim, 0, 0);
  if (tensor.size(shard.dim) == 0) return none;
  const std::vector<at::Tensor> units = tensor.split(shard.unit, shard.dim);
  const std::vector<at::Tensor> chunks = at::arange(std::ssize(units)).chunk(num_parts);
  if (index >= std::ssize(chunks)) return none;
  std::vector<at::Tensor> own;
  const at::Tensor& chunk = chunks[static_cast<std::size_t>(index)];
  for (std::int64_t i = 0; i < chunk.size(0); ++i) {
    own.push_back(units[static_cast<std::size_t>(chunk[i].item<std::int64_t>())]);
  }
  return at::cat(own, shard.dim);
}

// The part of the rank at the coordinate of `mesh`. Partial cuts nothing: each summand is laid out like a value.
[[nodiscard]] inline at::Tensor local_of(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  at::Tensor local = full;
  std::int64_t num_parts = 1;
  std::int64_t index = 0;
  const FlatShard* flat = nullptr;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const std::int64_t size = mesh.axes()[i].size;
    if (const auto* const shard = std::get_if<Shard>(&placements[i])) {
      local = chunk_of(local, *shard, mesh.coordinate()[i], size);
    }
    if (const auto* const here = std::get_if<FlatShard>(&placements[i])) {
      flat = here;
      num_parts *= size;
      index = index * size + mesh.coordinate()[i];
    }
  }
  if (flat == nullptr) return local.contiguous();
  // A group that contains only this tensor; `owned` marks the elements of the slice that belong to it.
  const at::Tensor group = at::zeros({flat->padded_numel}, local.options());
  const at::Tensor owned = at::zeros({flat->padded_numel}, at::kBool);
  group.narrow(0, flat->offset_in_unit, local.numel()).copy_(local.reshape({-1}));
  owned.narrow(0, flat->offset_in_unit, local.numel()).fill_(true);
  const std::int64_t part = flat->padded_numel / num_parts;
  return group.narrow(0, index * part, part).masked_select(owned.narrow(0, index * part, part));
}

}  // namespace d9d::test
