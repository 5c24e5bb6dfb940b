// A trainable tensor as one rank holds it: the local leaf that kernels compute with, the layout of the whole tensor
// over a mesh, and the layout of its gradient after backward. Optimisers, gradient reduction and checkpoints read these
// layouts and never infer them. In a job of one rank the mesh has axes of size 1. Outside of a job, before the first
// place(), the mesh has no axes and both layouts are empty.
//
// Example
//   auto weight = std::make_shared<Parameter>(ParameterSpec{.shape = {out, in}, .init = init::uniform(bound)});
//   weight->place(dense_mesh, "tp", Shard{0}, Shard{0});            // before materialize
//   weight->materialize(at::kCPU);                                  // meta -> storage, values undefined
//   weight->reset({.key = philox_key(seed, "init", "proj.weight")});
//   auto y = at::linear(x, weight->local());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/core/dtensor/parameter_role.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/core/rng/initializer.h"

namespace d9d {

struct ParameterSpec {
  std::vector<std::int64_t> shape;  // global
  Initializer init;
  ParameterRole role = ParameterRole::kUnknown;
};

class Parameter {
 public:
  // Created on the meta device, in float32 and requiring gradients, without memory.
  explicit Parameter(ParameterSpec spec);

  // The leaf that forward computes with: the box that Shard placements leave. The handle stays the same object until
  // materialize or replace_local. Under FlatShard it has storage only while its unit is gathered.
  [[nodiscard]] const at::Tensor& local() const { return local_; }
  // The tensor that this rank keeps and an optimiser updates: local(); under FlatShard a one-dimensional slice of it,
  // which may be empty; with a separate stored dtype a tensor in that dtype, from which local() is computed. Its
  // .grad() is the gradient to apply.
  [[nodiscard]] const at::Tensor& stored() const { return stored_.defined() ? stored_ : local_; }
  [[nodiscard]] DTensor dtensor() const;  // stored(), detached, with its layout

  [[nodiscard]] const std::vector<std::int64_t>& global_shape() const { return spec_.shape; }
  [[nodiscard]] std::int64_t global_numel() const;
  [[nodiscard]] ParameterRole role() const { return spec_.role; }
  // All axes of one mesh domain of the job; no axes before the first place().
  [[nodiscard]] const DeviceMesh& mesh() const { return mesh_; }
  [[nodiscard]] const Placements& placements() const { return placements_; }
  // For each mesh axis, the placement of the local gradient after backward: Partial(sum) if it must still be summed
  // over the axis, otherwise the parameter's placement. It does not follow from the parameter's layout: a norm on a
  // sequence shard and a router on the full sequence are both replicated over tp, and only the first needs a sum.
  [[nodiscard]] const Placements& gradient_placements() const { return gradient_placements_; }

  // The dtype of stored() if it has memory of its own (mixed precision). None: stored() is local(), or under FlatShard
  // the slice that is gathered.
  [[nodiscard]] std::optional<at::ScalarType> stored_dtype() const { return stored_dtype_; }
  // Local. Must precede materialize and any FlatShard, else throws StateError. update_local() must then run between a
  // change of stored() and a forward; under FlatShard gathers do that.
  void set_stored_dtype(at::ScalarType dtype);

  // Local. Sets the layout over one axis. Axes that are not placed are Replicate, and so are their gradients. Must
  // precede materialize, else throws StateError. Throws ConfigError for another mesh than before and for a Shard after
  // a FlatShard.
  void place(const DeviceMesh& mesh, std::string_view axis, Placement placement, Placement gradient_placement);

  [[nodiscard]] bool requires_grad() const;
  void set_requires_grad(bool requires_grad);

  void to(at::ScalarType dtype);        // drops the gradient; under FlatShard it must precede materialize
  void materialize(at::Device device);  // allocates storage with undefined values; under FlatShard see attach_flat
  void set_init(Initializer init);      // used by the next reset
  void reset(RandomStream stream);      // fills with the initializer; the numbers do not depend on the layout
  // Makes an existing leaf the local one. Its values count as this parameter's values if the parameter was initialized.
  // Throws StateError unless shape and dtype agree.
  void replace_local(const at::Tensor& leaf);
  // Makes local() a view of a gathered flat group, with its own shape, and stored() the `slice` that this rank keeps.
  void attach_flat(const at::Tensor& view, const at::Tensor& slice);
  // Copies this rank's part from the values of the whole tensor; dtype and device of the parameter do not change.
  // Throws StateError that names both shapes if they differ.
  void copy_from(const at::Tensor& values);
  // To be called after every element of stored() was written through dtensor(), which counts as copy_from.
  void mark_filled() { is_initialized_ = true; }
  // False between materialize and reset, copy_from or mark_filled.
  [[nodiscard]] bool is_initialized() const { return is_initialized_; }

 private:
  ParameterSpec spec_;
  at::Tensor local_;
  at::Tensor stored_;  // undefined: local_ is stored
  std::optional<at::ScalarType> stored_dtype_;
  DeviceMesh mesh_;
  Placements placements_;
  Placements gradient_placements_;
  bool is_initialized_ = false;
};

using ParameterPtr = std::shared_ptr<Parameter>;  // shared: tied modules register the same parameter

// Local. Converts stored() to local() for the parameters that have a stored_dtype() and are no flat shards. No autograd
// graph that still needs the previous values may exist.
void update_local(const std::vector<ParameterPtr>& parameters);

}  // namespace d9d
