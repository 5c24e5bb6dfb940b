// The members that the trainer requires of a learning-rate scheduler. Any class with these members can be used; there
// is no base class.
//
// Example
//   class HalveOnPlateau {                               // a user's own scheduler
//    public:
//     double factor() const;
//     void step();
//     nlohmann::ordered_json state() const;
//     void load_state(const nlohmann::ordered_json& state);
//   };
//   static_assert(d9d::LRSchedulerProtocol<HalveOnPlateau>);
#pragma once

#include <concepts>

#include <nlohmann/json.hpp>

namespace d9d {

// factor       what the optimiser's own learning rate is multiplied by in the next step; the same on all ranks.
// step         is called after each step of the job, also after one that changed nothing.
// state        all that a resumed run needs to continue.
// load_state   takes what state() returned; throws StateError for anything else.
template <class T>
concept LRSchedulerProtocol = std::move_constructible<T> &&
    requires(T scheduler, const T& constant, const nlohmann::ordered_json& state) {
  { constant.factor() } -> std::convertible_to<double>;
  scheduler.step();
  { constant.state() } -> std::convertible_to<nlohmann::ordered_json>;
  scheduler.load_state(state);
};

}  // namespace d9d
