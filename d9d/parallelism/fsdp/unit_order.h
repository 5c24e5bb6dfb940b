// The order in which sharded units are used: the unit that forward uses next, and the calls that backward has yet to
// pass.
//
// Example
//   const auto first = order.enter(0);                  // forward runs unit 0, then unit 1
//   order.leave(*first);
//   const auto second = order.enter(1);
//   order.leave(*second);
//   order.reverse();                                     // backward begins, and reaches the start of unit 0
//   while (order.is_ahead(*first, UnitOrder::Side::kStart)) order.step_back();
//                                                        // {1, kEnd}, {1, kStart}, {0, kEnd}, {0, kStart}
//
// The first microbatch records the order of units in forward, which later microbatches must follow. Backward passes the
// calls of forward in reverse order, whichever units the loss depends on: a call that the autograd graph does not reach
// is passed when backward reaches an earlier call. So all ranks pass the same units in the same order, even if their
// losses use different units.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace d9d {

class UnitOrder {
 public:
  enum class Side : std::uint8_t { kStart, kEnd };  // the start and the end of a call's forward
  // A call of a unit's module in a forward that has a backward.
  struct Call {
    std::size_t number;
    std::size_t unit;
  };
  struct Step {
    std::size_t unit;
    Side side;
  };

  void begin_microbatch();
  void end_microbatch();
  void abandon();
  // For pipelines, which run other microbatches between a forward and its backward: pause() keeps the calls that the
  // backward of this microbatch has to pass, and resume() begins this backward and restores the calls that pause()
  // kept, if any.
  void pause(std::int64_t microbatch);
  void resume(std::int64_t microbatch);

  // Returns whether the next enter() begins a forward: true after a backward, and where the recorded order has a
  // backward next.
  [[nodiscard]] bool begins_forward() const;
  // enter() begins the forward of a call, leave() ends it. enter() returns nullopt if the unit is not the next unit of
  // the recorded order.
  [[nodiscard]] std::optional<Call> enter(std::size_t unit);
  void leave(const Call& call);
  void forget(const Call& call);  // in place of leave(), if the call has no backward
  [[nodiscard]] bool is_recorded() const { return order().is_complete; }
  // Returns the unit that forward uses next in the recorded order; nullopt at the end of a forward or if nothing is
  // recorded.
  [[nodiscard]] std::optional<std::size_t> next_in_forward() const;

  // Called when a backward begins; further calls in the same backward do nothing.
  void reverse();
  // Returns whether backward has yet to pass this side of the call.
  [[nodiscard]] bool is_ahead(const Call& call, Side side) const;
  [[nodiscard]] bool is_at_start() const { return sequence_.empty(); }  // backward has passed all calls
  Step step_back();  // passes one side of a call; must not be called if is_at_start()
  // Returns the unit whose backward begins next; nullopt if there is none.
  [[nodiscard]] std::optional<std::size_t> next_in_backward() const;
  // goes_on_with() returns whether the next step of backward begins another call of the unit, comes_again_to() whether
  // any of the steps that are left does.
  [[nodiscard]] bool goes_on_with(std::size_t unit) const;
  [[nodiscard]] bool comes_again_to(std::size_t unit) const;

 private:
  struct Mark {
    Call call;
    Side side;
  };
  static constexpr std::size_t kBackward = SIZE_MAX;
  // The units in the order of forward, with kBackward where a backward followed.
  struct Recorded {
    std::vector<std::size_t> units = {};
    std::size_t position = 0;
    bool is_complete = false;
  };
  [[nodiscard]] Recorded& order() { return orders_[in_backward_pass_ ? 1 : 0]; }
  [[nodiscard]] const Recorded& order() const { return orders_[in_backward_pass_ ? 1 : 0]; }

  // orders_[1] is the order of forwards that run within a backward pass, as a user's own checkpoint may do.
  std::array<Recorded, 2> orders_;
  bool in_backward_pass_ = false;  // after resume()
  bool in_forward_ = false;
  std::size_t num_calls_ = 0;
  std::vector<Mark> sequence_;                        // a stack that forward pushes to and backward pops from
  std::map<std::int64_t, std::vector<Mark>> paused_;  // by microbatch
};

}  // namespace d9d
