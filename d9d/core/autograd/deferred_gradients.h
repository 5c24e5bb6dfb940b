// Split backward: gradients of inputs first, and gradients of weights when there is time. A pipeline's I and W.
//
// Example
//   DeferredGradients deferred(leaves_of(stage));
//   WeightGradients of_weights = deferred.keep([&] { loss.backward(); });     // I: gradients of inputs are there
//   ...                                                                       // other microbatches
//   of_weights.run();                                                         // W: those of the leaves are, too
//
// I is one ordinary backward: its graph is freed, and a checkpoint or a sharded unit runs and is gathered once. An
// operator that makes its weights' gradients by make_gradients() (leaf_gradient.h) leaves a product behind, which owns
// what it multiplies; W runs these products in their order, and computes nothing else. What other operators return is
// added in I: right, but not delayed. Either way GradientHook::arrived of a leaf comes in W, when its gradient is
// complete.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

namespace detail {
struct Deferral;
struct WaitingGradients;
}  // namespace detail

// What one backward left to do. Dropped without run(), the gradients are lost.
class [[nodiscard]] WeightGradients {
 public:
  WeightGradients();
  ~WeightGradients();
  WeightGradients(WeightGradients&&) noexcept;
  WeightGradients& operator=(WeightGradients&&) noexcept;

  // Runs the products, on the current stream, which must be that of keep(); each is freed when it has run. A second
  // call does nothing.
  void run();
  [[nodiscard]] std::size_t num_products() const;

 private:
  friend class DeferredGradients;
  std::unique_ptr<detail::WaitingGradients> waiting_;
};

// The leaves of one stage. Products of leaves that have a post-accumulation hook of a user, or are among those of
// another DeferredGradients, do not wait. One keep() at a time; not thread-safe.
class DeferredGradients {
 public:
  explicit DeferredGradients(const std::vector<at::Tensor>& leaves);
  ~DeferredGradients();
  DeferredGradients(const DeferredGradients&) = delete;
  DeferredGradients& operator=(const DeferredGradients&) = delete;

  // Calls backward(), which runs one backward on this thread. If it throws, nothing is kept.
  WeightGradients keep(const std::function<void()>& backward);

 private:
  std::unique_ptr<detail::Deferral> deferral_;
  std::vector<at::Tensor> leaves_;  // whose hooks refer to deferral_
};

}  // namespace d9d
