// Parameters that are gathered and reduced together. They have one dtype and one stored dtype, are all trained or all
// frozen, and are sharded over the same axes. They are concatenated in the given order, each at a multiple of 128
// elements (kFlatAlignment), and the whole is padded to equal slices; rank r of the shard axis keeps slice r. If other
// axes shard a parameter unevenly, all ranks reserve the size of the largest part, so that the layout is the same on
// all ranks.
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

// The axes of one mesh over which parameters are sharded, and those over which the shards are replicated (HSDP).
struct FsdpAxes {
  DeviceMesh mesh;
  std::string shard_axis;
  std::vector<std::string> replicate_axes = {};
};

class FlatGroup {
 public:
  using NamedParameters = std::vector<std::pair<std::string, ParameterPtr>>;

  // Places the parameters and their gradients: both FlatShard on the shard axis; on replicate axes the parameters are
  // Replicate and the gradients Partial(sum).
  FlatGroup(NamedParameters parameters, FsdpAxes axes);

  [[nodiscard]] const NamedParameters& parameters() const { return parameters_; }
  [[nodiscard]] bool requires_grad() const { return requires_grad_; }
  // Local. Sets the dtype of gradients, by default gradient_dtype_of() of the parameters' dtype. A change discards all
  // gradients.
  void set_gradient_dtype(c10::ScalarType dtype);
  [[nodiscard]] c10::ScalarType gradient_dtype() const { return gradient_dtype_; }
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }  // of the parameters
  [[nodiscard]] std::int64_t gathered_bytes() const;
  [[nodiscard]] std::int64_t gradient_bytes() const;  // of the full gradient; 0 for frozen parameters

  // Collective over the axes at the first call. Obtains the communicators. Throws StateError, naming the parameter, if
  // dtype or requires_grad changed since construction; so does gather().
  void connect();
  [[nodiscard]] std::shared_ptr<World> world() const { return axes_.mesh.world(); }
  [[nodiscard]] const std::shared_ptr<Communicator>& shard_ranks() const { return shard_ranks_; }
  [[nodiscard]] const std::shared_ptr<Communicator>& replica_ranks() const { return replica_ranks_; }  // null: none
  [[nodiscard]] std::int64_t slice_bytes() const { return gathered_bytes() / shard_ranks_->size(); }
  // Local. Allocates this rank's slice from `gather` and attaches the parameters to it. Both arguments communicate over
  // shard_ranks().
  void materialize(std::shared_ptr<ShardGather> gather, std::shared_ptr<ShardReduce> reduce);

  // Collective over the shard axis. Fills memory (kByte, gathered_bytes()) with the slices of all ranks, on the current
  // stream; local() of the parameters then reads this memory.
  void gather(const at::Tensor& memory);
  [[nodiscard]] bool gathers_by_collective() const { return gather_->is_collective(); }
  // Local. Converts the stored slice to the gathered slice, if these are different tensors. Called on the stream of
  // gathers between a change of the stored slice and the next gather(), while no other rank reads.
  void update_gathered_slice();
  void release() { flat_->detach(); }
  [[nodiscard]] bool is_gathered() const { return flat_.has_value() && flat_->is_attached(); }

  // Accumulates the full gradient in memory (kByte, gradient_bytes()) from now on.
  void begin_gradients(const at::Tensor& memory);
  [[nodiscard]] bool has_gradients() const { return full_grad_.defined(); }
  // Returns a parameter's part of the full gradient. The caller must write it, or add to it if
  // GradientPlace::has_values.
  [[nodiscard]] GradientPlace gradient_place(std::size_t index);
  // Moves a parameter's .grad() into the full gradient: adds it to existing values, or overwrites memory without
  // values.
  void take_gradient(std::size_t index);
  // Local. Allocates memory for the reduced slice, unless it exists. Call it on the stream that publishes and clears
  // gradients: the memory belongs to that stream, and streams that reduce wait for it.
  void allocate_shard_gradient();
  // Collective over the shard axis. Adds the sum of the ranks' full gradients to this rank's slice, on the current
  // stream, and releases the full gradient's memory. With `over_replicas` (in the last microbatch) it also sums over
  // the replicate axes everything that is not yet summed over them, so that the number of reductions in a step does not
  // matter. Throws StateError without `over_replicas` after a sum over replicas in the same step.
  void reduce_gradients(bool over_replicas);
  // Collective over the replicate axes, after the last microbatch. Sums over them the gradients of a group that was
  // reduced only in earlier microbatches.
  void sum_over_replicas();
  // Local. Sets stored().grad() of each parameter to its part of the reduced slice; zeros if nothing was reduced.
  void publish_gradients();
  // Local. Discards full, reduced and published gradients and frees their memory, which the next forward may use.
  void clear_gradients();
  // Returns this rank's slice of the parameters: the gathered slice and, if it is a different tensor, the stored slice.
  [[nodiscard]] std::vector<at::Tensor> slices() const;

 private:
  void check_unchanged() const;
  [[nodiscard]] at::Tensor full_gradient(std::size_t index) const;
  [[nodiscard]] at::Tensor slice_of(const at::Tensor& shard, std::size_t index) const;

  NamedParameters parameters_;
  FsdpAxes axes_;
  c10::ScalarType dtype_;
  std::optional<c10::ScalarType> stored_dtype_;
  c10::ScalarType gradient_dtype_;
  bool requires_grad_;
  std::vector<std::int64_t> offsets_;  // of the parameters in the group, in elements
  std::int64_t padded_numel_ = 0;      // N

  std::shared_ptr<Communicator> shard_ranks_;
  std::shared_ptr<Communicator> replica_ranks_;  // null: none
  std::shared_ptr<ShardGather> gather_;
  std::shared_ptr<ShardReduce> reduce_;
  std::optional<FlatStorage> flat_;
  at::Tensor shard_;                 // [N / W], the slice that gather() sends
  at::Tensor stored_shard_;          // [N / W], memory of stored(): shard_, unless there is a stored dtype
  at::Tensor full_grad_;             // [N]; defined from begin_gradients() to reduce_gradients()
  std::vector<bool> took_gradient_;  // by parameter: whether full_grad_ has values there
  at::Tensor shard_grad_;            // [N / W], the reduced slice
  bool has_shard_grad_ = false;
  bool is_summed_over_replicas_ = false;  // whether shard_grad_ is summed over them
};

}  // namespace d9d
