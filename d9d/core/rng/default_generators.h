// The states of LibTorch's default random generators: that of the CPU and, if the device is not the CPU, its own. Code
// of the user may draw from them.
//
// Example
//   const DefaultGenerators before(context.device());
//   ...                                                    // draws
//   before.restore();                                      // later draws are as if there had been none
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace d9d {

class DefaultGenerators {
 public:
  // Local. Copies the states. Ranks that are threads of one process share the generator of the CPU.
  explicit DefaultGenerators(c10::Device device);
  void restore() const;
  // Returns whether both have the same states.
  [[nodiscard]] bool operator==(const DefaultGenerators& other) const;

 private:
  c10::Device device_;
  std::vector<at::Tensor> states_;
};

}  // namespace d9d
