// A type-erased optimiser: holds any type that satisfies OptimizerProtocol by value.
//
// Example
//   Optimizer optimizer(AdamW(parameters, {.lr = 1e-3}));
//   loss.backward();
//   optimizer.step(optimizer.learning_rate() * scheduler.factor());
#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d {

// The members are those of the protocol.
class Optimizer {
 public:
  // T satisfies OptimizerProtocol.
  template <class T>
  requires(!std::same_as<T, Optimizer>) explicit Optimizer(T optimizer) : held_(hold(std::move(optimizer))) {}

  [[nodiscard]] double learning_rate() const { return held_->learning_rate(); }
  void step(double learning_rate) { held_->step(learning_rate); }
  // Whether the held optimiser satisfies ScalesGradients. Otherwise the step() with grad_scale and forget_step() throw
  // InternalError.
  [[nodiscard]] bool scales_gradients() const { return held_->scales_gradients(); }
  void step(double learning_rate, const at::Tensor& grad_scale) { held_->step(learning_rate, grad_scale); }
  void forget_step() { held_->forget_step(); }
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const { return held_->state_dict(); }
  // Empty unless the held optimiser satisfies HasRateFactors.
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return held_->rate_factors(); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual double learning_rate() const = 0;
    virtual void step(double learning_rate) = 0;
    virtual bool scales_gradients() const = 0;
    virtual void step(double learning_rate, const at::Tensor& grad_scale) = 0;
    virtual void forget_step() = 0;
    virtual std::map<std::string, DTensor> state_dict() const = 0;
    virtual std::map<std::string, double> rate_factors() const = 0;
  };

  template <class T>
  struct Held final : Interface {
    explicit Held(T value) : optimizer(std::move(value)) {}
    double learning_rate() const override { return optimizer.learning_rate(); }
    void step(double learning_rate) override { optimizer.step(learning_rate); }
    bool scales_gradients() const override { return ScalesGradients<T>; }
    void step(double learning_rate, const at::Tensor& grad_scale) override {
      if constexpr (ScalesGradients<T>) {
        optimizer.step(learning_rate, grad_scale);
      } else {
        D9D_ASSERT(false, "this optimiser takes no factor on gradients");
      }
    }
    void forget_step() override {
      if constexpr (ScalesGradients<T>) {
        optimizer.forget_step();
      } else {
        D9D_ASSERT(false, "this optimiser takes no factor on gradients");
      }
    }
    std::map<std::string, DTensor> state_dict() const override { return optimizer.state_dict(); }
    std::map<std::string, double> rate_factors() const override {
      if constexpr (HasRateFactors<T>) {
        return optimizer.rate_factors();
      } else {
        return {};
      }
    }

    T optimizer;
  };

  template <class T>
  static std::unique_ptr<Interface> hold(T optimizer) {
    static_assert(HasLearningRate<T>, "an optimiser needs the member `double learning_rate() const`");
    static_assert(HasStep<T>, "an optimiser needs the member `void step(double learning_rate)`");
    static_assert(HasStateDict<T>,
                  "an optimiser needs the member `std::map<std::string, d9d::DTensor> state_dict() const`");
    static_assert(std::move_constructible<T>, "an optimiser must be movable: Optimizer holds it by value");
    if constexpr (OptimizerProtocol<T>) {
      return std::make_unique<Held<T>>(std::move(optimizer));
    } else {
      return nullptr;
    }
  }

  std::unique_ptr<Interface> held_;
};

}  // namespace d9d
