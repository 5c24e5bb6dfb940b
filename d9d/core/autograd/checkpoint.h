// Activation checkpointing: runs a body, keeps only its inputs, and runs it again when backward needs its saved
// tensors.
//
// Example
//   const at::Tensor y = d9d::checkpoint([&](const at::Tensor& x) { return layer->forward(x); }, x);
//   const at::Tensor z = d9d::checkpoint_with({.keeps_results = true, .offloads = true}, body, y);
//
// Non-reentrant: the outer graph keeps its real nodes and weights, so hooks, gradient accumulation and split backward
// see an ordinary graph. The first saved tensor that backward unpacks recomputes the whole body once, up to the last
// tensor that is still needed. Checkpoints nest to any depth. Works for every module, including adopted torch::nn
// modules: the body only has to compute the same values again. Use replayed() or is_recomputing() for anything that
// must not happen twice. Results that are dear to compute can be kept (kept_result()), and what a recomputation starts
// from can wait in host memory (CheckpointOptions::offloads).
//
// Two kinds of recomputation that differ from the first run are detected, and backward throws StateError. First, a
// recomputation in which a LibTorch operator draws random numbers, from LibTorch's generators or from one that the body
// passes, whatever the generator's state (d9d::Dropout draws the same numbers again, and replayed() keeps the numbers
// of the first run). Second, a recomputation that uses a module's buffer which was written since the first run began,
// or was replaced by a tensor with other values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/tree/tree.h"

namespace d9d {

// Returns true inside the second run of a checkpointed body. Side effects (counters, statistics) belong in the first
// run.
[[nodiscard]] bool is_recomputing();

// Returns whether the calling thread runs a checkpointed body, for the first or the second time.
[[nodiscard]] bool is_checkpointed();

struct CheckpointOptions {
  // Results of kept_result() in the body are kept for the recomputation, which does not compute them again. Of a body
  // inside another checkpoint: only if that one keeps them, too.
  bool keeps_results = false;
  // The inputs that need gradients, and kept results, wait in host memory until backward
  // (core/offload/offloaded_activation.h). Has no effect inside another checkpoint, which recomputes them.
  bool offloads = false;
  bool operator==(const CheckpointOptions&) const = default;
};

// Returns compute(), tensors of no graph, such as an autograd function's in its forward. If the running body's
// checkpoint keeps results, its recomputation returns the tensors of the first run instead. They must not be modified
// in place. Every run of the body must call this in the same order.
[[nodiscard]] std::vector<at::Tensor> kept_result(const std::function<std::vector<at::Tensor>()>& compute);
// Returns whether kept_result() keeps what it is called for here.
[[nodiscard]] bool keeps_results();

// Declares that the running checkpointed body may use `*state`, a tensor named `name` that is not among the inputs of
// the body and that other code may write. Has an effect only in the first run of a body. ModulePtr calls this for the
// buffers of each module.
void note_state(const std::string& name, const std::shared_ptr<const at::Tensor>& state);

// Installs the autograd engine that provides the saved-variable hooks. Idempotent; process-wide. launch() calls it
// before any rank starts, and load_cuda() before any backward on a device. In a program that calls neither, the first
// checkpoint() calls it; that checkpoint must not be inside a backward.
void install_checkpoint_engine();

// Returns the number of backwards into .grad() that this thread has begun since install_checkpoint_engine(); calls of
// autograd::grad() do not count.
[[nodiscard]] std::int64_t num_backwards();

namespace detail {

// A value that the first run of a checkpointed body computed through replayed().
struct Replayed {
  virtual ~Replayed() = default;
};
using ReplayedPtr = std::shared_ptr<const Replayed>;
template <class Value>
struct ReplayedAs final : Replayed {
  explicit ReplayedAs(Value drawn) : value(std::move(drawn)) {}
  const Value value;
};

// The values that the first run of a body computed through replayed(), in order, and the logs of the checkpoints inside
// that body.
class ReplayLog {
 public:
  // Returns the log of the innermost checkpointed body that is running; null outside of checkpoints.
  [[nodiscard]] static ReplayLog* current();
  // Returns the log of a checkpoint that begins here. The log becomes part of the current log, so that a recomputation
  // of the enclosing body finds the values that the inner body's first run stored.
  [[nodiscard]] static std::shared_ptr<ReplayLog> inside_current();
  // In the first run, stores the result of compute() and returns it. In a recomputation, returns what the first run
  // stored at this position; throws StateError if the first run stored fewer values.
  [[nodiscard]] ReplayedPtr next(const std::function<ReplayedPtr()>& compute);
  void rewind() { position_ = 0; }
  void clear() { values_.clear(); }  // no recomputation follows

 private:
  std::vector<ReplayedPtr> values_;
  std::size_t position_ = 0;
};

using CheckpointBody = std::function<void(const std::vector<at::Tensor>& inputs)>;

// Runs `forward` without keeping the tensors that its operators save for backward. When backward needs one of these
// tensors, it calls `recompute` with the detached `inputs`.
void run_checkpointed(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs, CheckpointBody recompute,
                      const std::function<void()>& forward);
[[nodiscard]] bool grad_mode_is_enabled();
[[noreturn]] void refuse_other_type();

// In the first run returns compute() and appends it to `log`; in a recomputation returns the next value of `log`.
// Throws StateError if that value has another type than compute() returns.
template <class Compute>
[[nodiscard]] auto next_in(ReplayLog& log, const Compute& compute) {
  using Value = decltype(compute());
  const ReplayedPtr kept = log.next([&] { return std::make_shared<const ReplayedAs<Value>>(compute()); });
  const auto* const typed = dynamic_cast<const ReplayedAs<Value>*>(kept.get());
  if (typed == nullptr) refuse_other_type();
  return typed->value;
}

}  // namespace detail

// Returns compute(); in a recomputation returns the value of the first run instead. Use it for the next position of a
// random stream or for a clock. compute() may call replayed() itself.
template <class Compute>
[[nodiscard]] auto replayed(const Compute& compute) {
  detail::ReplayLog* const log = detail::ReplayLog::current();
  return log == nullptr ? compute() : detail::next_in(*log, compute);
}

// Returns body(args...), checkpointed. The inputs are all tensors in `args`, also those inside trees of tensors; other
// arguments are copied. `body` must not capture tensors that need gradients, except module parameters. If grad mode is
// off, only calls the body.
template <class Body, class... Args>
[[nodiscard]] auto checkpoint_with(const CheckpointOptions& options, const Body& body, const Args&... args) {
  using Output = decltype(body(args...));
  if (!detail::grad_mode_is_enabled()) return body(args...);
  std::tuple<Args...> skeleton(args...);  // the arguments without their tensors, which are in `inputs`
  std::vector<at::Tensor> inputs;
  tree_for_each_leaf(skeleton, [&](at::Tensor& leaf) { inputs.push_back(std::exchange(leaf, at::Tensor())); });
  const auto recompute = [body, skeleton = std::move(skeleton)](const std::vector<at::Tensor>& leaves) {
    std::tuple<Args...> arguments = skeleton;
    auto leaf_value = leaves.begin();
    tree_for_each_leaf(arguments, [&](at::Tensor& leaf) { leaf = *leaf_value++; });
    (void)std::apply(body, arguments);
  };
  std::optional<Output> output;
  detail::run_checkpointed(options, inputs, recompute, [&] { output.emplace(body(args...)); });
  return *std::move(output);
}
template <class Body, class... Args>
[[nodiscard]] auto checkpoint(const Body& body, const Args&... args) {
  return checkpoint_with({}, body, args...);
}

// Returns body(input) of each input, each checkpointed by itself, so that backward has the activations of one at a
// time. A recomputation of an enclosing checkpoint computes none of them: it ends with the last input. `body` as for
// checkpoint().
[[nodiscard]] std::vector<at::Tensor> checkpoint_each(const std::function<at::Tensor(const at::Tensor&)>& body,
                                                      const std::vector<at::Tensor>& inputs);

}  // namespace d9d
