// A flat tensor whose memory is attached and detached while its views live on. The views are parameters, and tensors
// that autograd saved.
//
// Example
//   FlatStorage flat(numel, at::TensorOptions().dtype(at::kFloat));
//   const at::Tensor weight = flat.tensor().narrow(0, 0, 12).view({3, 4}).variable_data();   // no memory yet
//   flat.attach(buffer);      // weight reads and writes buffer
//   flat.detach();            // using weight now throws an error that names the reason
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d {

class FlatStorage {
 public:
  FlatStorage(std::int64_t numel, const at::TensorOptions& options);

  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }  // [numel]
  [[nodiscard]] std::int64_t num_bytes() const;
  [[nodiscard]] bool is_attached() const { return memory_.defined(); }
  // memory: kByte, at least num_bytes(); it is kept alive until detach().
  void attach(const at::Tensor& memory);
  void detach();

 private:
  at::Tensor tensor_;
  at::Tensor memory_;  // undefined while detached
};

}  // namespace d9d
