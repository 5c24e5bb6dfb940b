// Meta kernels for LibTorch operators that have them only in Python: while the scope lives, these operators accept
// tensors on the meta device and return tensors of the right shape.
//
// Example
//   const MetaOperators operators;
//   at::where(mask, x, y);                  // mask, x, y on the meta device
#pragma once

#include <memory>

namespace d9d {

class MetaOperators {
 public:
  MetaOperators();
  ~MetaOperators();
  MetaOperators(const MetaOperators&) = delete;
  MetaOperators& operator=(const MetaOperators&) = delete;

 private:
  struct Registrations;
  std::unique_ptr<Registrations> registrations_;
};

}  // namespace d9d
