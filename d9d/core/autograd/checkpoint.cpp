#include "d9d/core/autograd/checkpoint.h"

#include <algorithm>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/operator_watch.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/offload/offloaded_activation.h"

namespace d9d {
namespace {

namespace ag = torch::autograd;
using HookFactory = std::function<std::unique_ptr<ag::SavedVariableHooks>()>;
using OffloadedPtr = std::shared_ptr<OffloadedActivation>;

// A tensor that a checkpointed body may use, with its version when the first run of the body called note_state().
class State {
 public:
  State(std::string name_, const std::shared_ptr<const at::Tensor>& tensor_)
      : name(std::move(name_)), tensor(tensor_), seen_(*tensor_) {
    if (seen_.is_inference()) {  // an inference tensor has no version counter, so its values are copied
      const c10::InferenceMode has_version(false);
      seen_ = seen_.clone();
    }
    version_ = seen_._version();
  }

  // Returns whether the tensor still has the values that it had at note_state(). Returns false after any write in
  // place. If another tensor has replaced it, compares the values of the two, which makes the host wait for the device.
  [[nodiscard]] bool is_as_seen() const {
    if (seen_._version() != version_) return false;
    if (tensor->is_same(seen_)) return true;
    const bool can_be_equal = tensor->options().type_equal(seen_.options()) && tensor->device() == seen_.device();
    const at::NoGradGuard no_grad;
    return can_be_equal && at::equal(*tensor, seen_);
  }

  const std::string name;
  const std::shared_ptr<const at::Tensor> tensor;

 private:
  at::Tensor seen_;
  std::int64_t version_;
};

// State of the calling thread while it runs a checkpointed body. Set when the body begins and restored when the body
// ends, so a backward never sees the scope of a forward.
struct BodyScope {
  const HookFactory* hooks = nullptr;
  detail::ReplayLog* log = nullptr;
  bool is_recomputing = false;
  std::vector<State>* states = nullptr;  // where note_state() stores states in a first run; null in a recomputation
  bool keeps_results = false;
  std::vector<OffloadedPtr>* offloaded = nullptr;  // where kept results that wait in host memory go; null: none wait
  const BodyScope* outer = nullptr;
};
thread_local BodyScope current_scope;
thread_local std::int64_t num_begun_backwards = 0;

template <class Run>
void run_in_scope(const BodyScope& scope, const Run& run) {
  struct Restore {
    BodyScope previous;
    ~Restore() { current_scope = previous; }
  } restore{std::exchange(current_scope, scope)};
  current_scope.outer = &restore.previous;
  run();
}

class CheckpointEngine final : public ag::Engine {
 public:
  ~CheckpointEngine() override { stop(); }
  static ag::Engine& instance() {
    // lint: allow(mutable-global): LibTorch gets the one engine from a function without arguments
    static CheckpointEngine engine;
    return engine;
  }
  ag::variable_list execute(const ag::edge_list& roots, const ag::variable_list& inputs, bool keep_graph,
                            bool create_graph, bool accumulate_grad, const ag::edge_list& outputs) override {
    if (accumulate_grad) ++num_begun_backwards;
    return ag::Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::unique_ptr<ag::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_scope.hooks == nullptr ? nullptr : (*current_scope.hooks)();
  }
  // Called by the engine while it handles an exception that `node` threw.
  void thread_on_exception(const std::shared_ptr<ag::GraphTask>& task, const std::shared_ptr<ag::Node>& node,
                           std::exception& error) override {
    if (node && !has_error_place()) add_error_place("in backward of " + node->name());
    Engine::thread_on_exception(task, node, error);
  }
};

// The tensors of a kept_result().
class KeptResult final : public detail::Replayed {
 public:
  // offloaded: gets those that wait in host memory; null if they stay.
  KeptResult(const std::vector<at::Tensor>& tensors, std::vector<OffloadedPtr>* offloaded) {
    for (const at::Tensor& tensor : tensors) {
      // Another tensor of the same memory, since the given one becomes an output of the graph that owns this.
      Kept kept{.tensor = tensor.detach(), .version = static_cast<std::uint32_t>(tensor._version())};
      if (offloaded != nullptr) {
        kept.offloaded = std::make_shared<OffloadedActivation>(kept.tensor);
        offloaded->push_back(kept.offloaded);
        kept.tensor.reset();
      }
      kept_.push_back(std::move(kept));
    }
  }
  [[nodiscard]] std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> tensors;
    for (const Kept& kept : kept_) {
      D9D_CHECK(kept.offloaded || kept.tensor._version() == kept.version, StateError,
                "[core::checkpoint] a checkpointed body modified in place a result that it keeps. Use the out-of-place "
                "operation.");
      tensors.push_back(kept.offloaded ? kept.offloaded->take() : kept.tensor.detach());
    }
    return tensors;
  }

 private:
  struct Kept {
    at::Tensor tensor;
    std::uint32_t version = 0;
    OffloadedPtr offloaded = nullptr;
  };
  std::vector<Kept> kept_;
};

struct StopRecomputation {};  // not a std::exception, so a body that catches std::exception does not swallow it

// An input of a checkpointed body.
struct KeptInput {
  ag::SavedVariable saved;
  OffloadedPtr offloaded;  // instead of `saved`
  bool requires_grad;
  [[nodiscard]] at::Tensor value() const { return offloaded ? offloaded->take() : saved.unpack(); }
};

class CheckpointFrame;
thread_local std::weak_ptr<CheckpointFrame> newest_that_offloads;

// One call of a checkpointed body. The autograd graph owns its slots, and the slots own the frame.
class CheckpointFrame final : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  // The inputs are saved under the hooks of the *enclosing* checkpoint, which then recomputes them instead of keeping
  // them.
  CheckpointFrame(const std::vector<at::Tensor>& inputs, detail::CheckpointBody body, const CheckpointOptions& options)
      : body_(std::move(body)),
        outer_is_recomputing_(current_scope.is_recomputing),
        keeps_results_(options.keeps_results && (current_scope.log == nullptr || current_scope.keeps_results)),
        is_outermost_(current_scope.log == nullptr),
        offloads_(is_outermost_ ? options.offloads : current_scope.offloaded != nullptr),
        outer_offloaded_(current_scope.offloaded) {
    for (const at::Tensor& input : inputs) {
      const bool requires_grad = input.defined() && input.requires_grad();
      // Inputs without gradients, such as tables, belong to all layers; who made a leaf keeps it for its gradient.
      const bool is_offloaded = is_outermost_ && offloads_ && requires_grad && !input.is_leaf();
      if (is_offloaded) offloaded_.push_back(std::make_shared<OffloadedActivation>(input.detach()));
      inputs_.push_back({.saved = is_offloaded ? ag::SavedVariable() : ag::SavedVariable(input, /*is_output=*/false),
                         .offloaded = is_offloaded ? offloaded_.back() : nullptr,
                         .requires_grad = requires_grad});
    }
  }

  void run(const std::function<void()>& forward) {
    const HookFactory make_slot = [this] { return std::make_unique<Slot>(shared_from_this()); };
    log_->rewind();
    BodyScope scope = scope_of_body();
    scope.hooks = &make_slot;
    scope.is_recomputing = outer_is_recomputing_;
    scope.states = &states_;
    run_in_scope(scope, forward);
    if (is_outermost_ && offloads_) before_ = std::exchange(newest_that_offloads, weak_from_this());
  }

 private:
  [[nodiscard]] BodyScope scope_of_body() {
    return {.log = log_.get(),
            .keeps_results = keeps_results_,
            .offloaded = !offloads_ ? nullptr : (is_outermost_ ? &offloaded_ : outer_offloaded_)};
  }
  // Starts to copy to the device what the recomputation will need.
  void prefetch() {
    for (const OffloadedPtr& each : offloaded_) each->prefetch();
  }

  // Stands in the graph for one tensor that an operator saved. Empty until the recomputation, which stores the tensor
  // here; freed when the operator's node releases its saved variables.
  struct Slot final : ag::SavedVariableHooks {
    explicit Slot(std::shared_ptr<CheckpointFrame> owner) : frame(std::move(owner)) {}
    ~Slot() override {
      if (index >= 0)
        frame->slots_[index] = nullptr;  // -1: autograd created the hooks for a wrapped number and never used them
    }
    void call_pack_hook(const at::Tensor& tensor) override {
      index = std::ssize(frame->slots_);
      sizes = tensor.sizes().vec();
      frame->slots_.push_back(this);
    }
    at::Tensor call_unpack_hook() override {
      if (!value.defined()) frame->recompute();
      D9D_CHECK(value._version() == version, StateError,
                "[core::checkpoint] a checkpointed body modified in place a tensor that its backward needs. Use the "
                "out-of-place operation.");
      return value;
    }
    std::shared_ptr<CheckpointFrame> frame;
    std::int64_t index = -1;
    std::vector<std::int64_t> sizes;
    at::Tensor value;
    std::int64_t version = 0;  // autograd does not check versions of tensors saved through hooks
  };

  // The hooks of the recomputation: the i-th tensor that it saves goes to the i-th slot of the first run.
  struct Refill final : ag::SavedVariableHooks {
    Refill(CheckpointFrame& owner, const OperatorWatch& over_body) : frame(owner), watch(over_body) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      check_computes_the_same(watch);  // checked here, so that the error names the module
      D9D_CHECK(frame.next_slot_ < frame.slots_.size(), StateError,
                "[core::checkpoint] expected the recomputation to save ", frame.slots_.size(),
                " tensors as the first run did, got more. The body must compute the same again: see replayed().");
      Slot* const slot = frame.slots_[frame.next_slot_++];
      if (slot == nullptr) return;  // autograd has freed the node that saved this tensor
      D9D_CHECK(tensor.sizes() == slot->sizes, StateError,
                "[core::checkpoint] expected the recomputation to save shape ", at::IntArrayRef(slot->sizes), ", got ",
                tensor.sizes(), ". The body must compute the same again.");
      slot->value = tensor.detach();  // shares the version counter but does not keep the graph of the recomputation
      slot->version = slot->value._version();
      if (--frame.num_wanted_ == 0) throw StopRecomputation{};
    }
    at::Tensor call_unpack_hook() override {
      throw StateError("[core::checkpoint] a backward ran inside a checkpointed body. Take it out of the body.");
    }
    CheckpointFrame& frame;
    const OperatorWatch& watch;
  };

  // Returns the memory of the noted states, which an OperatorWatch watches during a recomputation: the recomputation
  // must neither use a state that has changed since the first run noted it, nor write an unchanged one, as batch_norm
  // would.
  [[nodiscard]] std::vector<WatchedMemory> watched_states() const {
    std::vector<WatchedMemory> watched;
    for (const State& state : states_) {
      if (!state.tensor->defined() || !state.tensor->has_storage()) continue;
      watched.push_back({.name = state.name, .memory = state.tensor->storage(), .may_be_read = state.is_as_seen()});
    }
    return watched;
  }

  static void check_computes_the_same(const OperatorWatch& watch) {
    D9D_CHECK(!watch.drawing_operator(), StateError,
              "[core::checkpoint] expected a body under activation checkpointing to compute the same again, but ",
              *watch.drawing_operator(),
              " draws from a generator in the recomputation (LibTorch's, or an at::Generator that it is given), which "
              "the first run has moved on: the gradients would be those of other values than the loss. Use "
              "d9d::Dropout, a RandomStream or replayed(), or do not checkpoint this module.");
    D9D_CHECK(!watch.first_use(), StateError,
              "[core::checkpoint] expected a body under activation checkpointing to compute the same again, but the "
              "recomputation uses (",
              watch.first_use()->by, ") the buffer ", watch.first_use()->tensor,
              ", which forward writes. Write it under `if (!is_recomputing())` and do not read it in forward, read it "
              "through replayed(), or do not checkpoint this module.");
  }

  void recompute() {
    std::vector<at::Tensor> inputs;
    prefetch();
    for (const KeptInput& input : inputs_) {  // unpacking may recompute the enclosing checkpoint first
      const at::Tensor value = input.value();
      inputs.push_back(value.defined() ? value.detach().set_requires_grad(input.requires_grad) : value);
    }
    next_slot_ = 0;
    num_wanted_ = slots_.size() - static_cast<std::size_t>(std::ranges::count(slots_, nullptr));
    log_->rewind();
    // Backward goes through the checkpoints of a forward in reverse.
    if (const auto before = before_.lock()) before->prefetch();
    const OperatorWatch watch(watched_states());
    try {
      const at::AutoGradMode grad_mode(true);
      const HookFactory make_refill = [&] { return std::make_unique<Refill>(*this, watch); };
      BodyScope scope = scope_of_body();
      scope.hooks = &make_refill;
      scope.is_recomputing = true;
      run_in_scope(scope, [&] { body_(inputs); });
    } catch (const StopRecomputation&) {
    }
    check_computes_the_same(watch);
    D9D_CHECK(num_wanted_ == 0, StateError, "[core::checkpoint] expected the recomputation to save ", slots_.size(),
              " tensors as the first run did, got ", num_wanted_, " fewer. The body must compute the same again.");
    inputs_.clear();  // from here on backward needs only the tensors in the slots
    offloaded_.clear();
    log_->clear();
    body_ = nullptr;
    states_.clear();
  }

  detail::CheckpointBody body_;
  std::vector<KeptInput> inputs_;
  std::vector<Slot*> slots_;  // in the order in which the first run saved tensors; null: autograd has dropped the slot
  std::vector<State> states_;
  std::size_t next_slot_ = 0;
  std::size_t num_wanted_ = 0;
  const std::shared_ptr<detail::ReplayLog> log_ = detail::ReplayLog::inside_current();
  const bool outer_is_recomputing_;
  const bool keeps_results_;
  const bool is_outermost_;
  const bool offloads_;
  std::vector<OffloadedPtr> offloaded_;  // of the outermost checkpoint: inputs and kept results
  std::vector<OffloadedPtr>* const outer_offloaded_;
  std::weak_ptr<CheckpointFrame> before_;  // the checkpoint that offloaded before this one
};

}  // namespace

bool is_recomputing() { return current_scope.is_recomputing; }
bool is_checkpointed() { return current_scope.log != nullptr; }

void note_state(const std::string& name, const std::shared_ptr<const at::Tensor>& state) {
  for (const BodyScope* scope = &current_scope; scope != nullptr; scope = scope->outer) {
    if (scope->states == nullptr || !state->defined() || !state->has_storage()) continue;
    const auto is_known = [&](const State& known) { return known.tensor == state; };
    if (std::ranges::any_of(*scope->states, is_known)) continue;
    scope->states->emplace_back(name, state);
  }
}

bool keeps_results() { return current_scope.log != nullptr && current_scope.keeps_results; }

std::vector<at::Tensor> kept_result(const std::function<std::vector<at::Tensor>()>& compute) {
  if (!keeps_results()) return compute();
  std::vector<at::Tensor> tensors;
  const detail::ReplayedPtr kept = current_scope.log->next([&] {
    tensors = compute();
    return std::make_shared<const KeptResult>(tensors, current_scope.offloaded);
  });
  if (!tensors.empty()) return tensors;  // the first run
  const auto* const result = dynamic_cast<const KeptResult*>(kept.get());
  if (result == nullptr) detail::refuse_other_type();
  return result->tensors();
}

std::vector<at::Tensor> checkpoint_each(const std::function<at::Tensor(const at::Tensor&)>& body,
                                        const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs;
  if (!detail::grad_mode_is_enabled()) {
    for (const at::Tensor& input : inputs) outputs.push_back(body(input));
    return outputs;
  }
  // All checkpoints begin before the first runs, so that a recomputation that has their inputs can end.
  install_checkpoint_engine();
  std::vector<std::shared_ptr<CheckpointFrame>> frames;
  for (const at::Tensor& input : inputs) {
    frames.push_back(std::make_shared<CheckpointFrame>(
        std::vector{input}, [body](const auto& leaves) { (void)body(leaves.front()); }, CheckpointOptions()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    frames[i]->run([&] { outputs.push_back(body(inputs[i])); });
  }
  return outputs;
}

void install_checkpoint_engine() {
  static std::once_flag once;  // lint: allow(mutable-global): the engine belongs to the process
  std::call_once(once, [] { ag::set_default_engine_stub(&CheckpointEngine::instance); });
}

std::int64_t num_backwards() { return num_begun_backwards; }

namespace detail {

ReplayLog* ReplayLog::current() { return current_scope.log; }

std::shared_ptr<ReplayLog> ReplayLog::inside_current() {
  const auto make = [] { return std::make_shared<ReplayLog>(); };
  return current() == nullptr ? make() : next_in(*current(), make);
}

void refuse_other_type() {
  throw StateError(
      "[core::checkpoint] expected the recomputation to replay values of the same types as the first run did, got "
      "another. The body must compute the same again.");
}

ReplayedPtr ReplayLog::next(const std::function<ReplayedPtr()>& compute) {
  if (position_ == values_.size()) {
    D9D_CHECK(!current_scope.is_recomputing, StateError, "[core::checkpoint] expected the recomputation to replay ",
              values_.size(), " values as the first run did, got more. The body must compute the same again.");
    // A recomputation takes the stored value and does not call compute(), so replayed() inside compute() must store
    // nothing.
    BodyScope scope = current_scope;
    scope.log = nullptr;
    run_in_scope(scope, [&] { values_.push_back(compute()); });
  }
  return values_[position_++];
}

void run_checkpointed(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs, CheckpointBody recompute,
                      const std::function<void()>& forward) {
  install_checkpoint_engine();
  std::make_shared<CheckpointFrame>(inputs, std::move(recompute), options)->run(forward);
}

bool grad_mode_is_enabled() { return at::GradMode::is_enabled(); }

}  // namespace detail
}  // namespace d9d
