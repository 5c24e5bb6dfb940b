// Parameters that are gathered and reduced together: one dtype, all trained or none, over the same axes. Concatenated
// in the order of declaration, each at a multiple of 128 elements, 256 bytes or more in every dtype, the whole padded
// to equal slices; rank r of the shard axis keeps slice r. Where other axes cut a parameter unevenly all ranks leave
// the room that the largest part needs, so that every rank knows what every other holds.
//
// Legend   N padded elements of the group, W ranks of the shard axis
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/communicator/communicator.h"
#include "d9d/core/dtensor/parameter.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/parallelism/fsdp/flat_storage.h"
#include "d9d/parallelism/fsdp/shard_gather.h"
#include "d9d/parallelism/fsdp/shard_reduce.h"

namespace d9d {

// Over which axes of one domain parameters are cut, and over which cut parameters are copied (HSDP).
struct FsdpAxes {
  DeviceMesh mesh;
  std::string shard_axis;
  std::vector<std::string> replicate_axes = {};
};

class FlatGroup {
 public:
  using NamedParameters = std::vector<std::pair<std::string, ParameterPtr>>;

  // Places the parameters: FlatShard on the shard axis; their gradients too, and Partial(sum) on replicate axes.
  FlatGroup(NamedParameters parameters, FsdpAxes axes);

  [[nodiscard]] const NamedParameters& parameters() const { return parameters_; }
  [[nodiscard]] bool requires_grad() const { return requires_grad_; }
  // Local: of gradients; gradient_dtype_of() of the parameters' dtype before. Forgets gradients where it changes.
  void set_gradient_dtype(c10::ScalarType dtype);
  [[nodiscard]] c10::ScalarType gradient_dtype() const { return gradient_dtype_; }
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }  // of the parameters
  [[nodiscard]] std::int64_t gathered_bytes() const;
  [[nodiscard]] std::int64_t gradient_bytes() const;  // of the full gradient; 0 for frozen parameters

  // Collective over the axes the first time: finds the ranks. Throws StateError, naming the parameter, if dtype or
  // requires_grad changed since construction; so does gather.
  void connect();
  [[nodiscard]] const std::shared_ptr<Communicator>& shard_ranks() const { return shard_ranks_; }
  [[nodiscard]] const std::shared_ptr<Communicator>& replica_ranks() const { return replica_ranks_; }  // null: none
  [[nodiscard]] std::int64_t slice_bytes() const { return gathered_bytes() / shard_ranks_->size(); }
  // Local. Allocates this rank's slice there and attaches the parameters to it. Both over shard_ranks().
  void materialize(std::shared_ptr<ShardGather> gather, std::shared_ptr<ShardReduce> reduce);

  // Collective over the shard axis: fills memory (kByte, gathered_bytes()) with all slices; local() of the parameters
  // reads it. On the current stream.
  void gather(const at::Tensor& memory);
  [[nodiscard]] bool gathers_by_collective() const { return gather_->is_collective(); }
  void release() { flat_->detach(); }
  [[nodiscard]] bool is_gathered() const { return flat_.has_value() && flat_->is_attached(); }

  // memory (kByte, gradient_bytes()) takes the full gradient from now on.
  void begin_gradients(const at::Tensor& memory);
  [[nodiscard]] bool has_gradients() const { return full_grad_.defined(); }
  // A parameter's part of the full gradient. The caller writes it, or adds to it.
  [[nodiscard]] GradientPlace gradient_place(std::size_t index);
  // Adds a parameter's .grad() to the full gradient and drops it.
  void take_gradient(std::size_t index);
  // Collective over the shard axis: adds the sum of full gradients to this rank's slice, on the current stream; with
  // `over_replicas` (in the last microbatch) also sums over the replicate axes what they have not summed yet, so that
  // any number of reductions in a step gives the same. The full gradient's memory is free afterwards. Throws StateError
  // without `over_replicas` after a sum over replicas in the same step.
  void reduce_gradients(bool over_replicas);
  // Collective over the replicate axes, after the last microbatch: sums over them what no reduction has, where the
  // group was reduced in earlier microbatches alone.
  void sum_over_replicas();
  // Local: stored().grad() of each parameter becomes its part of the reduced slice; zeros, if nothing was reduced.
  void publish_gradients();
  // Local: forgets full, reduced and published gradients.
  void clear_gradients();
  // Local: the same, and gives their memory back.
  void free_gradients();
  [[nodiscard]] const at::Tensor& slice() const { return shard_; }  // what this rank keeps of the parameters

 private:
  void check_unchanged() const;
  void allocate_shard_gradient();
  [[nodiscard]] at::Tensor full_gradient(std::size_t index) const;
  [[nodiscard]] at::Tensor slice_of(const at::Tensor& shard, std::size_t index) const;

  NamedParameters parameters_;
  FsdpAxes axes_;
  c10::ScalarType dtype_;
  c10::ScalarType gradient_dtype_;
  bool requires_grad_;
  std::vector<std::int64_t> offsets_;  // of the parameters, in elements
  std::int64_t padded_numel_ = 0;      // N

  std::shared_ptr<Communicator> shard_ranks_;
  std::shared_ptr<Communicator> replica_ranks_;  // null: none
  std::shared_ptr<ShardGather> gather_;
  std::shared_ptr<ShardReduce> reduce_;
  std::optional<FlatStorage> flat_;
  at::Tensor shard_;                 // [N / W]
  at::Tensor full_grad_;             // [N] while gradients arrive
  std::vector<bool> took_gradient_;  // of the parameters: full_grad_ holds something there
  at::Tensor shard_grad_;            // [N / W], kept over steps
  bool has_shard_grad_ = false;
  bool is_summed_over_replicas_ = false;  // shard_grad_, in this step
};

}  // namespace d9d
