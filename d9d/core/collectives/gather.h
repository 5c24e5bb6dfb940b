// Collects tensors and objects of all ranks of a group, without autograd, into buffers of its own.
//
// Example
//   const std::vector<at::Tensor> losses = all_gather(loss, *communicator);           // by rank
//   PendingTensors pending = all_gather_async(logits, *communicator);
//   ...                                                                               // `logits` may change at once
//   const std::vector<at::Tensor> all = pending.wait();
//   const auto reports = gather_object({{"step", 7}}, *communicator, /*root=*/0);
//
// Tensors are on the device of the communicator, of any strides; what comes back is contiguous and in the order of
// ranks. `root` is a rank of the group; on the others the result is empty. The caller may overwrite what it gave as
// soon as a function has returned, the async forms too; a PendingTensors must be waited for before it is dropped.
//
// gather, all_gather: the same shape and dtype on all ranks. *_variadic_shape: any shapes of up to 16 dims, the same
// number or not, and one dtype, or all ranks throw ConfigError. They block the host once, to learn the shapes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

class PendingTensors {
 public:
  PendingTensors(std::vector<at::Tensor> tensors, at::Tensor sent, Work work)
      : tensors_(std::move(tensors)), sent_(std::move(sent)), work_(std::move(work)) {}

  // As Work::wait(). Once.
  [[nodiscard]] std::vector<at::Tensor> wait() {
    work_.wait();
    sent_.reset();
    return std::move(tensors_);
  }

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor sent_;  // in flight
  Work work_;
};

// Collective, all of them. Results of all_gather share one buffer.
[[nodiscard]] std::vector<at::Tensor> all_gather(const at::Tensor& tensor, Communicator& communicator);
[[nodiscard]] PendingTensors all_gather_async(const at::Tensor& tensor, Communicator& communicator);
[[nodiscard]] std::vector<at::Tensor> gather(const at::Tensor& tensor, Communicator& communicator, std::int64_t root);
[[nodiscard]] PendingTensors gather_async(const at::Tensor& tensor, Communicator& communicator, std::int64_t root);

// Each travels padded to the largest.
[[nodiscard]] std::vector<at::Tensor> all_gather_variadic_shape(const at::Tensor& tensor, Communicator& communicator);
[[nodiscard]] PendingTensors all_gather_variadic_shape_async(const at::Tensor& tensor, Communicator& communicator);
// Each sends its own elements and no more.
[[nodiscard]] std::vector<at::Tensor> gather_variadic_shape(const at::Tensor& tensor, Communicator& communicator,
                                                            std::int64_t root);
[[nodiscard]] PendingTensors gather_variadic_shape_async(const at::Tensor& tensor, Communicator& communicator,
                                                         std::int64_t root);

// Objects are JSON values, byte strings (nlohmann::json::binary) among them. They travel as CBOR: numbers, NaN
// included, arrive as they were.
[[nodiscard]] std::vector<nlohmann::json> all_gather_object(const nlohmann::json& object, Communicator& communicator);
[[nodiscard]] std::vector<nlohmann::json> gather_object(const nlohmann::json& object, Communicator& communicator,
                                                        std::int64_t root);

}  // namespace d9d
