// Assembles a tensor from the parts that ranks hold. Parts that several ranks hold must be equal bit for bit.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/dtensor.h"

namespace d9d::test {

// Shared by all ranks; thread-safe.
class Assembler {
 public:
  void add(const std::string& name, const DTensor& part);
  [[nodiscard]] std::map<std::string, at::Tensor> take() { return std::move(whole_); }
  [[nodiscard]] const std::vector<std::string>& faults() const { return faults_; }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> whole_;
  std::vector<std::string> faults_;
};

}  // namespace d9d::test
