// Sees which of LibTorch's operators the calling thread runs while a watch lives: whether one draws from LibTorch's
// random generators, and whether one takes a certain tensor.
//
// Example
//   const OperatorWatch watch;
//   y = module->forward(x);
//   if (const auto name = watch.drawing_operator()) std::cout << *name << " draws random numbers\n";
//
// Exact where the state of a generator is not: other threads may draw meanwhile, and a CUDA generator cannot be asked
// while a graph is captured. Costs 0.2 microseconds an operator, and never waits for a device. This library's own
// kernels are no operators.
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

// The memory of a tensor that an operator is not to take, by what an error calls it.
struct WatchedMemory {
  std::string name;
  c10::Storage memory;
  // Only operators that write it without saying so count: batch_norm of running statistics, in training.
  bool may_be_read = false;
};

class OperatorWatch {
 public:
  explicit OperatorWatch(std::vector<WatchedMemory> memory = {});
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // The first operator that drew from a generator of LibTorch: "aten::bernoulli_". One with a probability of 0, or
  // outside of training, draws nothing.
  [[nodiscard]] const std::optional<std::string>& drawing_operator() const { return drawing_operator_; }
  struct Use {
    std::string tensor;  // WatchedMemory::name
    std::string by;      // the operator
  };
  [[nodiscard]] const std::optional<Use>& first_use() const { return first_use_; }

  // For the callback of LibTorch.
  void see(const at::RecordFunction& call);
  [[nodiscard]] OperatorWatch* outer() const { return outer_; }

 private:
  std::vector<WatchedMemory> memory_;
  std::optional<std::string> drawing_operator_;
  std::optional<Use> first_use_;
  OperatorWatch* const outer_;  // of this thread, which sees the same
  std::uint64_t callback_ = 0;  // of the outermost watch
};

}  // namespace d9d
