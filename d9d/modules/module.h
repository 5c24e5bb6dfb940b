// The base class of every part of a model: registration, traversal, late initialisation. Subclasses are ordinary
// classes.
//
// Example
//   class FeedForward : public Module {
//    public:
//     explicit FeedForward(std::int64_t hidden)
//         : up(register_module<Linear>("up", LinearConfig{hidden, 4 * hidden})),
//           down(register_module<Linear>("down", LinearConfig{4 * hidden, hidden})) {}
//     at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
//     const ModulePtr<Linear> up, down;
//   };
//   auto model = make_module<FeedForward>(64);          // on the meta device: shapes, no memory
//   model->materialize(at::kCPU);                       // after parallelize_*: storage
//   model->reset_parameters(/*base_seed=*/42);          // values
//
// Late initialisation: constructors never allocate or draw random numbers. Every parameter and buffer names its
// initializer where it is registered, so that none can be forgotten, and its numbers depend only on (base seed, dotted
// name, element).
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/dtensor/parameter.h"
#include "d9d/modules/activation_plan.h"
#include "d9d/modules/module_hook.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {

class TensorParallelContext;  // d9d/blocks/linear/tensor_parallel_context.h
using TensorParallelContextPtr = std::shared_ptr<const TensorParallelContext>;  // shared by the blocks of a model

template <class T>
class ModulePtr;
template <class T, class... Args>
[[nodiscard]] ModulePtr<T> make_module(Args&&... args);

namespace detail {
void note_buffers(const Module& module);
struct NoModule {  // stands for a module after a compile error
  template <class T>
  operator ModulePtr<T>() const;  // NOLINT: converts to any, never defined
};
}  // namespace detail

// A tensor that is not a parameter and is not trained: a table, a counter.
struct Buffer {
  at::Tensor local;
  Initializer init;
  bool is_persistent = true;  // part of the state dict
  bool follows_dtype = true;  // Module::to() converts it, if floating
  bool is_initialized = false;
};
using BufferPtr = std::shared_ptr<Buffer>;

struct BufferSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::ScalarType::Float;
  Initializer init;
  bool is_persistent = true;
  bool follows_dtype = true;
};

// Identifies the microbatch that a model computes.
struct RandomMicrobatch {
  std::uint64_t step = 0;                               // optimiser step
  std::uint64_t number = 0;                             // within the step, among those of all ranks
  std::map<std::string, std::uint64_t> num_draws = {};  // so far in this microbatch, for each layer by canonical name
};

// The position in training from which random layers (dropout) derive their numbers. One object for each model, set by
// the loop.
struct RandomClock {
  std::uint64_t base_seed = 0;
  RandomMicrobatch microbatch = {};  // replaced for each microbatch, which resets the number of draws
  bool is_captured = false;          // a graph is captured, which would freeze the numbers: reading the clock throws
  std::int64_t num_ranks = 1;        // number of ranks that work on one microbatch together
};
using RandomClockPtr = std::shared_ptr<RandomClock>;

// The effect of an optimiser step.
enum class StepOutcome : std::uint8_t {
  kUpdated,
  kSkipped,  // nothing changed: gradients were not finite, or the total weight was 0
};

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Depth first, in the order of registration; names are dotted paths from this module. A parameter that is registered
  // under several names (tied) is listed under the first of them.
  [[nodiscard]] std::vector<std::pair<std::string, ParameterPtr>> named_parameters() const;
  [[nodiscard]] std::vector<std::pair<std::string, BufferPtr>> named_buffers() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::shared_ptr<Module>>> named_children() const;
  // Calls visit(name, module) for this module (name "") and everything below.
  void for_each_module(const std::function<void(const std::string& name, Module& module)>& visit);

  // What this rank stores of the parameters, and persistent buffers, by name: aliases, not copies.
  [[nodiscard]] std::map<std::string, at::Tensor> state_dict() const;
  // Collective. The same with whole tensors on every rank; these are copies where a rank stores only a part. Waits for
  // the device, and throws CommunicationError if a communication failed, since the gathered values are then invalid.
  [[nodiscard]] std::map<std::string, at::Tensor> full_state_dict() const;

  void to(at::ScalarType dtype);        // converts floating parameters and buffers; before or after materialize
  void materialize(at::Device device);  // allocates storage with undefined values
  void reset_parameters(std::uint64_t base_seed);
  // Throws StateError that lists the names of parameters and buffers without values.
  void check_initialized() const;

  void train(bool is_training = true);
  void eval() { train(false); }
  [[nodiscard]] bool is_training() const { return is_training_; }
  // Whether the backward of the next forward runs right after it, as without pipelines. Otherwise other microbatches
  // run in between, and values that forward could compute for backward, such as a head's gradients, are better computed
  // in backward.
  void set_backward_follows(bool follows);  // of this module and all below
  [[nodiscard]] bool backward_follows() const { return backward_follows_; }
  void set_requires_grad(bool requires_grad);  // of all parameters below

  // Whether backward recomputes this module's activations instead of keeping them (core/autograd/checkpoint.h).
  void set_activation_checkpointing(bool enabled, const CheckpointOptions& options = {}) {
    checkpoints_activations_ = enabled;
    checkpoint_options_ = options;
  }
  [[nodiscard]] bool checkpoints_activations() const { return checkpoints_activations_; }
  [[nodiscard]] const CheckpointOptions& checkpoint_options() const { return checkpoint_options_; }

  // The plans that this module can follow for its activations; empty if it is no unit that is planned.
  [[nodiscard]] virtual std::vector<ActivationPlan> activation_plans() const { return {}; }
  // Throws ConfigError for a plan that this module cannot follow.
  virtual void set_activation_plan(const ActivationPlan& plan);

  // Hooks run in the order of their addition before forward, and in reverse order after it. The module owns its hooks.
  void add_hook(std::shared_ptr<ModuleHook> hook) { hooks_.push_back(std::move(hook)); }
  [[nodiscard]] const std::vector<std::shared_ptr<ModuleHook>>& hooks() const { return hooks_; }

  // Whether a call runs forward() and nothing else. A block may then compute this module's result together with others.
  [[nodiscard]] bool is_plain() const { return hooks_.empty() && !checkpoints_activations_; }

  // Collective over all ranks. Called after each optimiser step, for this module and all below: updates load balancing
  // and counters. After a skipped step no state of the model changes.
  void finish_step(StepOutcome outcome);
  // Collective, like finish_step, and to be called before it. Returns tensors about the step, for logging. Names are
  // "<dotted path>/<name>"; a tensor of several elements holds counts.
  [[nodiscard]] std::map<std::string, at::Tensor> step_statistics() const;

  // The FLOPs of this module's own matrix products, without those of its children, in the forward and backward of one
  // token of a sequence of so many positions. Counted for the whole model, not for a rank's part. The gradient of each
  // input counts, also where nothing before it is trained.
  [[nodiscard]] virtual double training_flops(std::int64_t /*num_positions*/) const { return 0; }

  // How tensor parallelism over num_ranks ranks lays this module out; none if this is not built for it. Throws
  // ConfigError for sizes that cannot be divided among so many ranks.
  [[nodiscard]] virtual std::optional<TensorPlan> tensor_plan(std::int64_t /*num_ranks*/) const { return std::nullopt; }
  // Replaces the local context of a module whose plan was carried out.
  virtual void set_tensor_parallel_context(TensorParallelContextPtr /*context*/) {}

  // The dotted name under which the root was reset; "" before, and of the root. Keys random streams; errors name it.
  [[nodiscard]] const std::string& canonical_name() const { return canonical_name_; }

  // The clock that random layers below read; every module below shares it.
  void set_random_clock(const RandomClockPtr& clock);
  // Throws ConfigError while a CUDA graph of this module is being captured.
  [[nodiscard]] const RandomClockPtr& random_clock() const;

 protected:
  // Names must be new in this module, not empty and without dots (ConfigError).
  ParameterPtr register_parameter(const std::string& name, ParameterSpec spec);
  ParameterPtr register_parameter(const std::string& name, ParameterPtr shared);  // tied to another module's
  // Turns the mistake of registering values into one compile error.
  template <class Values>
  requires std::convertible_to<const Values&, at::Tensor> ParameterPtr register_parameter(const std::string&,
                                                                                          const Values&) {
    static_assert(sizeof(Values) == 0,
                  "register_parameter takes no tensor, since memory comes later: write register_parameter(name, "
                  "{.shape = {...}, .init = init::normal(0.02)}), and values of one's own in after_reset()");
    return nullptr;
  }
  BufferPtr register_buffer(const std::string& name, BufferSpec spec);
  template <class T>
  ModulePtr<T> register_module(const std::string& name, ModulePtr<T> child) {
    register_child(name, child.shared());
    return child;
  }
  template <class T, class... Args>
  ModulePtr<T> register_module(const std::string& name, Args&&... args) {
    return register_module(name, make_module<T>(std::forward<Args>(args)...));
  }
  // Registers a child whose parameters, buffers and children keep their own names here, such as a pipeline stage. If
  // two such children have a buffer of the same name (a table that each has), the name stands for both; a parameter's
  // name stands for that of the first child.
  void register_unnamed(std::shared_ptr<Module> child);
  // Removes the child of this name, if there is one, with its parameters.
  void remove_child(const std::string& name);
  // Turns the mistake of registering something else into one compile error.
  template <class Child>
  detail::NoModule register_module(const std::string&, const Child&) {
    static_assert(sizeof(Child) == 0,
                  "register_module takes a ModulePtr: write register_module<T>(name, arguments of T's constructor), or "
                  "for a module of torch::nn register_module(name, adopt([] { return ...; })) (d9d/modules/adopt.h)");
    return {};
  }

  // Called after this module's own parameters and buffers are filled, for values that an initializer cannot compute.
  virtual void after_reset(std::uint64_t /*base_seed*/, const std::string& /*name*/) {}
  // Called after storage is allocated on `device` with the parameters' final dtype.
  virtual void after_materialize(at::Device /*device*/) {}

  // This module's part of finish_step() and of step_statistics().
  virtual void on_step_finished(StepOutcome /*outcome*/) {}
  [[nodiscard]] virtual std::map<std::string, at::Tensor> own_step_statistics() const { return {}; }

 private:
  void register_child(const std::string& name, std::shared_ptr<Module> child);
  void check_new_name(const std::string& name) const;
  friend void detail::note_buffers(const Module& module);

  std::vector<std::pair<std::string, ParameterPtr>> parameters_;
  std::vector<std::pair<std::string, BufferPtr>> buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<std::shared_ptr<ModuleHook>> hooks_;
  RandomClockPtr random_clock_ = std::make_shared<RandomClock>();
  std::string canonical_name_;
  bool is_training_ = true;
  bool backward_follows_ = true;
  bool checkpoints_activations_ = false;
  CheckpointOptions checkpoint_options_;
};

}  // namespace d9d

#include "d9d/modules/module_ptr.h"
