#include "d9d/core/rng/initializer.h"

#include <ATen/ATen.h>

namespace d9d::init {

Initializer zeros() {
  return [](const at::Tensor& local, const ElementWindow&, RandomStream) { local.zero_(); };
}
Initializer ones() {
  return [](const at::Tensor& local, const ElementWindow&, RandomStream) { local.fill_(1); };
}
Initializer uniform(double bound) {
  return [bound](const at::Tensor& local, const ElementWindow& window, RandomStream stream) {
    fill_uniform(local, window, stream, -bound, bound);
  };
}
Initializer normal(double std) {
  return [std](const at::Tensor& local, const ElementWindow& window, RandomStream stream) {
    fill_normal(local, window, stream, 0.0, std);
  };
}

}  // namespace d9d::init
