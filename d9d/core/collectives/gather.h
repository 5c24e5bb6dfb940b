// Collects tensors and objects of all ranks of a group, without autograd, into newly allocated buffers.
//
// Example
//   const std::vector<at::Tensor> losses = all_gather(loss, *communicator);           // by rank
//   PendingTensors pending = all_gather_async(logits, *communicator);
//   ...                                                                               // `logits` may be overwritten
//   const std::vector<at::Tensor> all = pending.wait();
//   const auto reports = gather_object({{"step", 7}}, *communicator, /*root=*/0);
//
// Tensors are on the device of the communicator and may have any strides; results are contiguous and in the order of
// ranks. `root` is a rank of the group; on the other ranks the result is empty. The caller may overwrite its input as
// soon as a function has returned, also with the async forms. A PendingTensors must be waited for before it is dropped.
//
// gather, all_gather: the same shape and dtype on all ranks. *_variadic_shape: shapes may differ in sizes and in the
// number of dims, of which there are at most 16; the dtype is the same, or all ranks throw ConfigError. The latter
// block the host once, to exchange the shapes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

class PendingTensors {
 public:
  PendingTensors(std::vector<at::Tensor> tensors, at::Tensor sent, Work work)
      : tensors_(std::move(tensors)), sent_(std::move(sent)), work_(std::move(work)) {}

  // Waits like Work::wait(). May be called once.
  [[nodiscard]] std::vector<at::Tensor> wait() {
    work_.wait();
    sent_.reset();
    return std::move(tensors_);
  }

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor sent_;  // the input, kept alive while the operation is in flight
  Work work_;
};

// All functions are collective. Results of all_gather share one buffer.
[[nodiscard]] std::vector<at::Tensor> all_gather(const at::Tensor& tensor, Communicator& communicator);
[[nodiscard]] PendingTensors all_gather_async(const at::Tensor& tensor, Communicator& communicator);
[[nodiscard]] std::vector<at::Tensor> gather(const at::Tensor& tensor, Communicator& communicator, std::int64_t root);
[[nodiscard]] PendingTensors gather_async(const at::Tensor& tensor, Communicator& communicator, std::int64_t root);

// Each tensor is sent padded to the size of the largest.
[[nodiscard]] std::vector<at::Tensor> all_gather_variadic_shape(const at::Tensor& tensor, Communicator& communicator);
[[nodiscard]] PendingTensors all_gather_variadic_shape_async(const at::Tensor& tensor, Communicator& communicator);
// Each rank sends its own elements without padding.
[[nodiscard]] std::vector<at::Tensor> gather_variadic_shape(const at::Tensor& tensor, Communicator& communicator,
                                                            std::int64_t root);
[[nodiscard]] PendingTensors gather_variadic_shape_async(const at::Tensor& tensor, Communicator& communicator,
                                                         std::int64_t root);

// Objects are JSON values, including byte strings (nlohmann::json::binary). They are sent as CBOR, which preserves
// numbers exactly, NaN included.
[[nodiscard]] std::vector<nlohmann::json> all_gather_object(const nlohmann::json& object, Communicator& communicator);
// Collective over the ranks of a mesh. A mesh of one rank needs no communicator: the result is this rank's object.
[[nodiscard]] std::vector<nlohmann::json> all_gather_object(const nlohmann::json& object, const DeviceMesh& mesh);
[[nodiscard]] std::vector<nlohmann::json> gather_object(const nlohmann::json& object, Communicator& communicator,
                                                        std::int64_t root);

}  // namespace d9d
