// Operators of LibTorch that C++ has no meta form of, only Python: while the scope lives, they return tensors of the
// right shape for tensors of the meta device.
//
// Example
//   const MetaOperators operators;
//   at::where(mask, x, y);                  // of three tensors on the meta device
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
