// Split backward of zero-bubble pipelines: first the gradients of inputs (I), later the deferred gradients of weights
// (W).
//
// Example
//   DeferredGradients deferred(leaves_of(stage));
//   WeightGradients of_weights = deferred.keep([&] { loss.backward(); });     // I: computes gradients of inputs
//   ...                                                                       // other microbatches run
//   of_weights.run();                                                         // W: completes gradients of leaves
//
// I is one ordinary backward: its graph is freed, a checkpoint is recomputed once, and a sharded unit is gathered once.
// An operator that computes gradients of its weights by make_gradients() (leaf_gradient.h) defers this computation as a
// product that owns its operands; W runs these products in their order, and computes nothing else. Gradients that other
// operators return are accumulated in I: correct, but not deferred. In both cases GradientHook::arrived of a leaf is
// called in W, when its gradient is complete.
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

// The deferred weight gradients of one backward. They are lost if the object is destroyed before run().
class [[nodiscard]] WeightGradients {
 public:
  WeightGradients();
  ~WeightGradients();
  WeightGradients(WeightGradients&&) noexcept;
  WeightGradients& operator=(WeightGradients&&) noexcept;

  // Runs the products on the current stream, which must be the stream of keep(); frees each after it has run. A second
  // call does nothing.
  void run();
  [[nodiscard]] std::size_t num_products() const;

 private:
  friend class DeferredGradients;
  std::unique_ptr<detail::WaitingGradients> waiting_;
};

// Defers gradients of the leaves of one stage, except leaves that have a post-accumulation hook of a user or belong to
// another DeferredGradients. Only one keep() may run at a time; not thread-safe.
class DeferredGradients {
 public:
  explicit DeferredGradients(const std::vector<at::Tensor>& leaves);
  ~DeferredGradients();
  DeferredGradients(const DeferredGradients&) = delete;
  DeferredGradients& operator=(const DeferredGradients&) = delete;

  // Calls backward(), which must run one backward on this thread, and returns the gradients that this backward has
  // deferred. If backward() throws, nothing is kept.
  WeightGradients keep(const std::function<void()>& backward);

 private:
  std::unique_ptr<detail::Deferral> deferral_;
  std::vector<at::Tensor> leaves_;  // leaves whose hooks refer to deferral_
};

}  // namespace d9d
