// Watches LibTorch's operators that the calling thread runs: detects operators that draw from LibTorch's random
// generators, and operators that use given tensors.
//
// Example
//   const OperatorWatch watch;
//   y = module->forward(x);
//   if (const auto name = watch.drawing_operator()) std::cout << *name << " draws random numbers\n";
//
// It is more exact than a comparison of generator states, since other threads may draw at the same time, and the state
// of a CUDA generator cannot be read while a graph is captured. It costs 0.2 microseconds per operator and never waits
// for a device. It does not see this library's own kernels, which are not operators.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace at {
class RecordFunction;
}

namespace d9d {

// Memory of a tensor that operators must not use, with the name that errors give it.
struct WatchedMemory {
  std::string name;
  c10::Storage memory;
  // True: operators may read the memory; detected are only those that write it without declaring it, such as
  // batch_norm, which writes running statistics in training.
  bool may_be_read = false;
};

class OperatorWatch {
 public:
  explicit OperatorWatch(std::vector<WatchedMemory> memory = {});
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // The first operator that drew from a generator of LibTorch, such as "aten::bernoulli_". An operator with a
  // probability of 0, or outside of training, draws nothing.
  [[nodiscard]] const std::optional<std::string>& drawing_operator() const { return drawing_operator_; }
  struct Use {
    std::string tensor;  // WatchedMemory::name
    std::string by;      // the operator
  };
  [[nodiscard]] const std::optional<Use>& first_use() const { return first_use_; }

  // Called by LibTorch's callback for each operator.
  void see(const at::RecordFunction& call);
  [[nodiscard]] OperatorWatch* outer() const { return outer_; }

 private:
  std::vector<WatchedMemory> memory_;
  std::optional<std::string> drawing_operator_;
  std::optional<Use> first_use_;
  OperatorWatch* const outer_;  // the enclosing watch of this thread, which sees the same operators
  std::uint64_t callback_ = 0;  // handle of LibTorch's callback; only the outermost watch has one
};

}  // namespace d9d
