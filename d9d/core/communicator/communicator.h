// The one interface to communication among the ranks of a group. Backends: threads of one process, Gloo, NCCL.
//
// Example
//   const std::shared_ptr<Communicator> data = mesh.communicator("dp_shard");
//   data->all_reduce(loss, ReduceOp::kSum).wait();
//   Work gathering = data->all_gather(full, shard);     // [n * size] <- [n]
//   ...                                                  // compute that does not need `full`
//   gathering.wait();
//
// Operations are collective: all ranks of the group call the same operations in the same order, with the same
// shapes and dtypes. Tensors are contiguous, on device(), and must stay at their addresses until wait() has returned.
// Results depend only on the order of ranks, not on timing. Errors are CommunicationError and name the rank, the group,
// the operation and its sequence number; a group that failed stays failed. Autograd-aware forms: core/collectives.
//
// Legend   W size(), r rank()
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/reduce_op.h"
#include "d9d/core/communicator/work.h"

namespace d9d {

// The kind of data that a communicator carries. All ranks issue operations of one kind in the same order. The order of
// operations of different kinds depends on when gradients become ready, which may differ between ranks, so each kind
// has its own communicators.
enum class Traffic : std::uint8_t {
  kCompute,     // forward, backward, and communication of the loop
  kParameters,  // all-gathers of sharded parameters and reductions of their gradients (FSDP)
  kGradients,   // gradients of parameters that ranks hold whole
};

// Which ranks of the job form the group, and which of them this rank is.
struct RankGroup {
  std::string name;                 // for messages: "dense:dp_cp_shard"
  std::vector<std::int64_t> ranks;  // ranks of the job, in their order in the group
  std::int64_t index = 0;           // ranks[index] is this rank
  Traffic traffic = Traffic::kCompute;
  std::int64_t lane = 0;  // index of the one of two concurrent computations that uses it (World::lane)
};

// One message of an exchange().
struct PointToPoint {
  enum class Direction { kSend, kReceive } direction;
  at::Tensor tensor;
  std::int64_t peer = 0;  // rank in the group
};

class Communicator {
 public:
  explicit Communicator(RankGroup group) : group_(std::move(group)) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] const RankGroup& group() const { return group_; }
  [[nodiscard]] std::int64_t rank() const { return group_.index; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(group_.ranks.size()); }
  [[nodiscard]] virtual at::Device device() const = 0;  // device of all tensors

  [[nodiscard]] virtual Work all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;  // in place, any shape
  // output [W * n, ...] <- input [n, ...] of all ranks. input may be this rank's part of output.
  [[nodiscard]] virtual Work all_gather(const at::Tensor& output, const at::Tensor& input) = 0;
  // output [n, ...] <- part r of the reduction of input [W * n, ...], whose contents are undefined afterwards. output
  // may be this rank's part of input.
  [[nodiscard]] virtual Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) = 0;
  // Sends rows [n_0 + ... + n_i-1, + n_i) of input to rank i, and receives as many rows as that rank sends. Splits
  // count rows of dim 0; there are W of each kind, and zeros are allowed. Only in this operation shapes may differ
  // between ranks.
  [[nodiscard]] virtual Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<std::int64_t>& output_splits,
                                        const std::vector<std::int64_t>& input_splits) = 0;
  [[nodiscard]] virtual Work broadcast(const at::Tensor& tensor, std::int64_t root) = 0;  // in place
  // On root: outputs[i] <- input of rank i. On the other ranks outputs is empty.
  [[nodiscard]] virtual Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                                    std::int64_t root) = 0;
  // output <- inputs[r] of root. On the other ranks inputs is empty.
  [[nodiscard]] virtual Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                     std::int64_t root) = 0;
  // Starts all messages together, in any order; messages between two ranks match in the order of their lists. Only the
  // ranks that have messages call it.
  [[nodiscard]] virtual Work exchange(const std::vector<PointToPoint>& messages) = 0;
  virtual void barrier() = 0;  // blocks the host until all ranks have called it

  // Local. Throws CommunicationError if this group has failed. Call it after the host has read results of the group
  // (core/communicator/to_host.h and core/device/host_copy.h do): a failed CUDA operation leaves arbitrary values in
  // its results and is reported only here. CPU operations report failures in Work::wait().
  virtual void throw_if_failed() {}
  // Local. Whether throw_if_failed() would throw. Returns immediately, on any thread, without asking other ranks or the
  // device.
  [[nodiscard]] virtual bool has_failed() const { return false; }
  // Local. Called by code that waits for a rank of the group without an operation. Throws CommunicationError if the
  // group has failed or, if ranks are threads, if the program of one of them has returned.
  virtual void throw_if_rank_is_gone() { throw_if_failed(); }

  // Sets how long operations that start from now on may wait for other ranks.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // Local. Makes pending and later operations of this group fail, on all ranks that the backend can reach.
  virtual void abort(const std::string& reason) = 0;

  // Collective; called by World::disconnect() and reconnect() when no operation is in flight. disconnect() frees what
  // the group holds on devices and in the network, and until reconnect() operations throw StateError. The object, its
  // timeout and its failures stay. Communicators that hold nothing do nothing.
  virtual void disconnect() {}
  virtual void reconnect() {}

 private:
  RankGroup group_;
};

}  // namespace d9d
