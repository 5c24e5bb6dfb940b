// An optimiser that changes nothing: gradients stay as the ranks summed them, neither divided nor clipped.
//
// Example
//   const auto grad_scale = std::make_shared<at::Tensor>();
//   Optimizer optimizer{IdleOptimizer(grad_scale)};
//   (void)gradients.apply(optimizer, /*learning_rate=*/0.0);      // *grad_scale: the factor that it was given
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/optim/optimizer.h"

namespace d9d::test {

class IdleOptimizer {
 public:
  explicit IdleOptimizer(std::shared_ptr<at::Tensor> grad_scale = std::make_shared<at::Tensor>())
      : grad_scale_(std::move(grad_scale)) {}
  double learning_rate() const { return 0.0; }
  void step(double /*learning_rate*/) {}
  void step(double /*learning_rate*/, const at::Tensor& grad_scale) { *grad_scale_ = grad_scale; }
  void forget_step() {}
  std::map<std::string, DTensor> state_dict() const { return {}; }

 private:
  std::shared_ptr<at::Tensor> grad_scale_;
};

}  // namespace d9d::test
