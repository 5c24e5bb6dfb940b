// Wraps a module of torch::nn, or of any class derived from torch::nn::Module, as a Module of this library.
//
// Example
//   #include <torch/nn/modules/normalization.h>            // the one header that declares what you adopt
//
//   class Block : public Module {
//    public:
//     Block() : norm(register_module("norm", adopt([] { return torch::nn::LayerNorm(LayerNormOptions({64})); }))) {}
//     at::Tensor forward(const at::Tensor& x) { return norm(x); }
//     const ModulePtr<Adopted<torch::nn::LayerNormImpl>> norm;
//   };
//
// torch::nn's constructors allocate and draw random numbers, so `adopt` takes a function that makes the module. The
// function runs when the adopted module is constructed (only names, shapes and dtypes are kept), when storage is
// allocated (the module made then computes), and in reset_parameters(), seeded by (base seed, dotted name), for the
// values. The state of ATen's default CPU generator is restored afterwards.
//
// Parameters are those of torch::nn with its names, and the torch::nn module computes with them: changes by an
// optimiser, a checkpoint or to(dtype) affect both. A forward that draws random numbers itself (dropout) is refused,
// because the numbers would depend on earlier draws of the process. Use d9d::Dropout beside it. Buffers that forward
// writes (BatchNorm) are written once, also under activation checkpointing, and after each step all ranks have those of
// the first data-parallel rank: broadcast_buffers().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "d9d/core/autograd/operator_watch.h"
#include "d9d/modules/module.h"

namespace torch::nn {
class Module;
class LinearImpl;
}  // namespace torch::nn

namespace d9d {

namespace detail {

// The parameters and buffers of one torch::nn module, with its children as child modules.
class AdoptedTensors : public Module {
 public:
  explicit AdoptedTensors(const torch::nn::Module& source);
};

// A term of an adopted torch::nn::Linear, with parameters of its own.
class AdoptedTerm : public Module {
 public:
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& input) const = 0;
};

class AdoptedModule : public AdoptedTensors {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  explicit AdoptedModule(Factory factory);
  void set_buffer_ranks(const DeviceMesh& ranks) { buffer_ranks_ = ranks; }

  // Whether it is a torch::nn::Linear, with parameters weight [out, in] and bias if it has one, and not of a class
  // derived from it. Only such a one can have a term.
  [[nodiscard]] bool is_linear() const { return is_linear_; }
  // Local. From now on forward adds term->forward(input) to its output; null removes the term. The term's parameters
  // keep their names here.
  void set_term(const std::shared_ptr<AdoptedTerm>& term);
  [[nodiscard]] const std::shared_ptr<AdoptedTerm>& term() const { return term_; }

 protected:
  void on_step_finished(StepOutcome outcome) override;
  void after_materialize(at::Device device) override;
  void after_reset(std::uint64_t base_seed, const std::string& name) override;

  // Returns the module, set to this module's training mode. Throws StateError before materialize(), and if a
  // parameter's leaf has been replaced.
  [[nodiscard]] torch::nn::Module& ready_module() const;

  void check_drew_nothing(const OperatorWatch& watch) const;
  [[nodiscard]] at::Tensor with_term(const at::Tensor& output, const at::Tensor& input) const;

  // While it lives in a recomputation, the torch::nn module uses copies of its buffers with their values before the
  // first run, so that it computes the same again and its own buffers do not change.
  class BuffersOfFirstRun {
   public:
    explicit BuffersOfFirstRun(const AdoptedModule& module);
    ~BuffersOfFirstRun();
    BuffersOfFirstRun(const BuffersOfFirstRun&) = delete;
    BuffersOfFirstRun& operator=(const BuffersOfFirstRun&) = delete;

   private:
    struct Replaced {
      at::Tensor buffer;
      at::Tensor values;  // its own
    };
    std::vector<Replaced> replaced_;
  };

 private:
  AdoptedModule(Factory factory, const std::shared_ptr<torch::nn::Module>& made);
  void follow_mode() const;

  const Factory factory_;
  const bool is_linear_;
  const std::vector<std::pair<std::string, ParameterPtr>> adopted_parameters_;  // not those of a term
  std::shared_ptr<AdoptedTerm> term_;
  // Its tensors are those of the adopted parameters and buffers; null until materialized.
  std::shared_ptr<torch::nn::Module> module_;
  mutable std::vector<bool> modes_;  // whether each module inside was training before eval()
  DeviceMesh buffer_ranks_;          // broadcast_buffers()
};

// The module type behind std::shared_ptr<Impl> or a holder of torch::nn such as torch::nn::Linear.
template <class Factory>
using AdoptedImpl = std::remove_reference_t<decltype(*std::declval<Factory&>()())>;

// A std::shared_ptr<Impl> or a holder of torch::nn.
template <class T>
concept PointsToModule = requires(T& pointer) {
  pointer.operator->();
};

}  // namespace detail

template <class Impl>
class Adopted : public detail::AdoptedModule {
 public:
  using AdoptedModule::AdoptedModule;

  // Calls Impl's forward.
  template <class... Args>
  auto forward(const Args&... args) const -> decltype(std::declval<Impl&>().forward(args...)) {
    auto& module = static_cast<Impl&>(ready_module());
    const BuffersOfFirstRun buffers(*this);
    const OperatorWatch watch;
    auto output = module.forward(args...);
    check_drew_nothing(watch);
    if constexpr (std::is_same_v<Impl, torch::nn::LinearImpl>) {
      return with_term(output, args...);
    } else {
      return output;
    }
  }
};

// Local. From now on, at the end of each step, adopted modules below `model` get the buffers of the first of `ranks`,
// such as running statistics, as with torch.nn.parallel.DistributedDataParallel. `ranks` compute on different data.
// replicate_over_data() and shard_over_data() call it. Without it ranks keep different buffers, of which no checkpoint
// can be made.
void broadcast_buffers(Module& model, const DeviceMesh& ranks);

// make() returns a new std::shared_ptr<Impl> or a new holder in each call.
template <class Make>
requires(!detail::PointsToModule<Make>) [[nodiscard]] ModulePtr<Adopted<detail::AdoptedImpl<Make>>> adopt(Make make) {
  return make_module<Adopted<detail::AdoptedImpl<Make>>>([make = std::move(make)] {
    auto made = make();
    if constexpr (requires { made.ptr(); }) {
      return std::shared_ptr<torch::nn::Module>(made.ptr());
    } else {
      return std::shared_ptr<torch::nn::Module>(std::move(made));
    }
  });
}

// Turns the mistake of passing a module instead of a function that makes it into one compile error.
template <detail::PointsToModule Made>
ModulePtr<Adopted<std::remove_reference_t<decltype(*std::declval<Made&>())>>> adopt(const Made&) {
  static_assert(sizeof(Made) == 0,
                "adopt takes a function that makes a module: adopt([] { return torch::nn::Linear(3, 4); }) instead of "
                "adopt(torch::nn::Linear(3, 4))");
  return nullptr;
}

}  // namespace d9d
