// In which order sharded units are used: what forward comes to next, and what backward still has to come back to.
//
// Example
//   const auto first = order.enter(0);                  // forward runs unit 0, then unit 1
//   order.leave(*first);
//   const auto second = order.enter(1);
//   order.leave(*second);
//   order.turn();                                        // backward comes to the start of unit 0
//   while (order.lies_ahead(*first, UnitOrder::Side::kStart)) order.step_back();
//                                                        // {1, kEnd}, {1, kStart}, {0, kEnd}, {0, kStart}
//
// The forward of the first microbatch is the order of later ones. Backward goes the way of forward back, whatever its
// loss used: what it leaves out is passed when it comes to something that lies before. So all ranks pass the same units
// in the same order, also where their losses use others.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace d9d {

class UnitOrder {
 public:
  enum class Side : std::uint8_t { kStart, kEnd };  // of a call
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

  // Whether the next enter() begins a forward: after a backward, or where one was when the order was recorded.
  [[nodiscard]] bool begins_forward() const;
  // Forward. None: the unit is not the next one.
  [[nodiscard]] std::optional<Call> enter(std::size_t unit);
  void leave(const Call& call);
  void forget(const Call& call);  // it has no backward
  [[nodiscard]] bool is_recorded() const { return is_recorded_; }
  // In the recorded order: the unit that forward comes to; none: its end, or not recorded.
  [[nodiscard]] std::optional<std::size_t> next_in_forward() const;

  // Backward.
  void turn();  // it has begun
  [[nodiscard]] bool lies_ahead(const Call& call, Side side) const;
  [[nodiscard]] bool is_at_start() const { return way_.empty(); }
  Step step_back();  // not at the start
  // The unit whose backward begins next. nullopt: backward is at its end.
  [[nodiscard]] std::optional<std::size_t> next_in_backward() const;
  // Whether backward comes to another call of the unit: as its next step, or at any later one.
  [[nodiscard]] bool goes_on_with(std::size_t unit) const;
  [[nodiscard]] bool comes_again_to(std::size_t unit) const;

 private:
  struct Mark {
    Call call;
    Side side;
  };
  static constexpr std::size_t kTurn = SIZE_MAX;

  std::vector<std::size_t> recorded_;  // units in forward, kTurn where backward followed
  std::size_t position_ = 0;
  bool is_recorded_ = false;
  bool in_forward_ = false;
  std::size_t num_calls_ = 0;
  std::vector<Mark> way_;  // as forward went; backward takes from its end
};

}  // namespace d9d
