// Activation checkpointing: run a body now, keep only its inputs, run it again when backward asks for what it saved.
//
// Example
//   const at::Tensor y = d9d::checkpoint([&](const at::Tensor& x) { return layer->forward(x); }, x);
//
// Non-reentrant: the outer graph keeps its real nodes and weights, so hooks, gradient accumulation and split backward
// see an ordinary graph. The first saved tensor that backward unpacks recomputes the whole body once, up to the last
// tensor that is still needed. Checkpoints nest, to any depth. Works for every module, adopted torch::nn modules too:
// nothing is asked of the body but that it computes the same again. What must not happen twice goes through replayed()
// or is_recomputing().
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/tree/tree.h"

namespace d9d {

// True inside the second run of a checkpointed body: side effects (counters, statistics) belong to the first.
[[nodiscard]] bool is_recomputing();

// Installs the autograd engine that hands out the saved-variable hooks. Idempotent; process-wide. launch() does it
// before any rank starts; the first checkpoint() does it in a program without launch(), which must not be inside a
// backward then.
void install_checkpoint_engine();

namespace detail {

// Values that the first run of a checkpointed body drew, in order, and the logs of the checkpoints inside it.
class ReplayLog {
 public:
  // Of the innermost body that runs. Null outside of checkpoints.
  [[nodiscard]] static ReplayLog* current();
  // Of a checkpoint that begins here: a part of the current log, so that whoever computes the enclosing body again
  // finds what the first run of the inner one drew.
  [[nodiscard]] static std::shared_ptr<ReplayLog> inside_current();
  // In the first run: stores compute(). Later: returns what the first stored at this position; throws StateError where
  // it stored fewer.
  [[nodiscard]] std::any next(const std::function<std::any()>& compute);
  void rewind() { position_ = 0; }

 private:
  std::vector<std::any> values_;
  std::size_t position_ = 0;
};

using CheckpointBody = std::function<void(const std::vector<at::Tensor>& inputs)>;

// Runs `forward` under hooks that keep nothing; `recompute` gets detached copies of `inputs`.
void run_checkpointed(const std::vector<at::Tensor>& inputs, CheckpointBody recompute,
                      const std::function<void()>& forward);
[[nodiscard]] bool grad_mode_is_enabled();

}  // namespace detail

// compute(), and in a recomputation the value that the first run got: for a random stream's next position, a clock.
// compute() may call replayed() itself.
template <class Compute>
[[nodiscard]] auto replayed(const Compute& compute) {
  using Value = decltype(compute());
  detail::ReplayLog* const log = detail::ReplayLog::current();
  return log == nullptr ? compute() : std::any_cast<Value>(log->next([&] { return std::any(compute()); }));
}

// body(args...), checkpointed. Tensors anywhere in `args` (trees of tensors) are the inputs; tensors that need
// gradients must not be captured by `body` (module parameters may). Other arguments are copied. Without grad mode just
// body(args...).
template <class Body, class... Args>
[[nodiscard]] auto checkpoint(const Body& body, const Args&... args) {
  using Output = decltype(body(args...));
  if (!detail::grad_mode_is_enabled()) return body(args...);
  std::tuple<Args...> skeleton(args...);  // the arguments without their tensors, which the frame keeps
  std::vector<at::Tensor> inputs;
  tree_for_each_leaf(skeleton, [&](at::Tensor& leaf) { inputs.push_back(std::exchange(leaf, at::Tensor())); });
  const auto recompute = [body, skeleton = std::move(skeleton)](const std::vector<at::Tensor>& leaves) {
    std::tuple<Args...> arguments = skeleton;
    auto leaf_value = leaves.begin();
    tree_for_each_leaf(arguments, [&](at::Tensor& leaf) { leaf = *leaf_value++; });
    (void)std::apply(body, arguments);
  };
  std::optional<Output> output;
  detail::run_checkpointed(inputs, recompute, [&] { output.emplace(body(args...)); });
  return *std::move(output);
}

}  // namespace d9d
