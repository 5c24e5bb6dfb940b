// The members that the trainer requires of an optimiser. Any class with these members can be used; there is no base
// class.
//
// Example
//   class SignDescent {                                   // a user's own optimiser
//    public:
//     double learning_rate() const;
//     void step(double learning_rate);
//     std::map<std::string, DTensor> state_dict() const;
//   };
//   static_assert(d9d::OptimizerProtocol<SignDescent>);
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/core/dtensor/parameter_role.h"
#include "d9d/core/rng/random_stream.h"

namespace d9d {

// A leaf that an optimiser updates and the name under which its state is saved.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;      // what this rank keeps, possibly empty; one-dimensional where parameters are sharded by FSDP
  ElementRows rows = {};  // the positions of these elements in the whole parameter, for random numbers of elements
  std::vector<std::int64_t> global_shape = {};  // of the whole parameter
  DeviceMesh mesh = {};                         // that it lies on, and how
  Placements placements = {};
  ParameterRole role = ParameterRole::kUnknown;  // in the model

  // `values`, of the tensor's shape, with the parameter's layout: an entry of state_dict().
  [[nodiscard]] DTensor laid_out(const at::Tensor& values) const {
    if (mesh.axes().empty()) return whole_dtensor(values);
    return {.local = values, .mesh = mesh, .placements = placements, .global_shape = global_shape};
  }
};

// learning_rate    the rate that it was built with; schedulers multiply it.
// step             updates parameters from their .grad() at the given learning rate; parameters without a gradient do
//                  not change, and gradients are not modified.
// state_dict       aliases of all state, complete after construction, so that a checkpoint is read into them, on any
//                  mesh: NamedParameter::laid_out() for state with an element for each element of a parameter,
//                  whole_dtensor() for state that is the same on all ranks, such as a count of steps.
template <class T>
concept HasLearningRate = requires(const T& optimizer) {
  { optimizer.learning_rate() } -> std::convertible_to<double>;
};
template <class T>
concept HasStep = requires(T& optimizer, double learning_rate) {
  optimizer.step(learning_rate);
};
template <class T>
concept HasStateDict = requires(const T& optimizer) {
  { optimizer.state_dict() } -> std::convertible_to<std::map<std::string, DTensor>>;
};
template <class T>
concept OptimizerProtocol = std::move_constructible<T> && HasLearningRate<T> && HasStep<T> && HasStateDict<T>;

// Optional: an optimiser that multiplies gradients by a 0-dim tensor as it reads them, so that the host need not know
// that tensor's value first. Other optimisers get gradients that are already multiplied, and are not called if the
// gradients are not finite.
//
// step           must change no parameter and no moment if grad_scale is NaN.
// forget_step    is called after such a step, with the same gradients, and must undo its count.
template <class T>
concept ScalesGradients = requires(T optimizer, double learning_rate, const at::Tensor& grad_scale) {
  optimizer.step(learning_rate, grad_scale);
  optimizer.forget_step();
};

// Optional: the factor of the learning rate of each group of parameters, by the group's name. A job logs each group's
// rate as lr/<name>.
template <class T>
concept HasRateFactors = requires(const T& optimizer) {
  { optimizer.rate_factors() } -> std::convertible_to<std::map<std::string, double>>;
};

}  // namespace d9d
