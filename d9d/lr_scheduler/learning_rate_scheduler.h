// A type-erased learning-rate scheduler: holds any type that satisfies LRSchedulerProtocol by value.
//
// Example
//   LearningRateScheduler scheduler(LambdaScheduler([](std::int64_t step) { return step < 100 ? 1.0 : 0.1; }));
//   optimizer.step(optimizer.learning_rate() * scheduler.factor());
//   scheduler.step();
#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include "d9d/lr_scheduler/lr_scheduler_protocol.h"

namespace d9d {

// The members are those of the protocol.
class LearningRateScheduler {
 public:
  template <LRSchedulerProtocol T>
  requires(!std::same_as<T, LearningRateScheduler>) explicit LearningRateScheduler(T scheduler)
      : held_(std::make_unique<Held<T>>(std::move(scheduler))) {}

  [[nodiscard]] double factor() const { return held_->factor(); }
  void step() { held_->step(); }
  [[nodiscard]] nlohmann::ordered_json state() const { return held_->state(); }
  void load_state(const nlohmann::ordered_json& state) { held_->load_state(state); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual double factor() const = 0;
    virtual void step() = 0;
    virtual nlohmann::ordered_json state() const = 0;
    virtual void load_state(const nlohmann::ordered_json& state) = 0;
  };

  template <class T>
  struct Held final : Interface {
    explicit Held(T value) : scheduler(std::move(value)) {}
    double factor() const override { return scheduler.factor(); }
    void step() override { scheduler.step(); }
    nlohmann::ordered_json state() const override { return scheduler.state(); }
    void load_state(const nlohmann::ordered_json& state) override { scheduler.load_state(state); }

    T scheduler;
  };

  std::unique_ptr<Interface> held_;
};

}  // namespace d9d
