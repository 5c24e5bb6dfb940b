#include "d9d/parallelism/fsdp/unit_order.h"

#include <algorithm>
#include <utility>

namespace d9d {

void UnitOrder::begin_microbatch() {
  in_backward_pass_ = false;
  order().position = 0;
  in_forward_ = false;
}

void UnitOrder::end_microbatch() { order().is_complete |= !order().units.empty(); }

void UnitOrder::pause(std::int64_t microbatch) {
  end_microbatch();
  in_forward_ = false;
  paused_[microbatch] = std::exchange(sequence_, {});
}

void UnitOrder::resume(std::int64_t microbatch) {
  in_backward_pass_ = true;
  order().position = 0;
  const auto found = paused_.extract(microbatch);
  if (!found.empty()) sequence_ = found.mapped();
}

void UnitOrder::abandon() {
  begin_microbatch();
  sequence_.clear();
  paused_.clear();
  for (Recorded& each : orders_) {
    if (!each.is_complete) each.units.clear();
  }
}

bool UnitOrder::begins_forward() const {
  const auto& [units, position, is_complete] = order();
  return !in_forward_ || (is_complete && position < units.size() && units[position] == kBackward);
}

std::optional<UnitOrder::Call> UnitOrder::enter(std::size_t unit) {
  auto& [units, position, is_complete] = order();
  if (!is_complete) {
    units.push_back(unit);
  } else {
    while (position < units.size() && units[position] == kBackward) ++position;  // no backward followed here
    if (position == units.size() || units[position] != unit) return std::nullopt;
    ++position;
  }
  in_forward_ = true;
  const Call call{.number = num_calls_++, .unit = unit};
  sequence_.push_back({call, Side::kStart});
  return call;
}

void UnitOrder::leave(const Call& call) { sequence_.push_back({call, Side::kEnd}); }

void UnitOrder::forget(const Call& call) {
  std::erase_if(sequence_, [&](const Mark& mark) { return mark.call.number == call.number; });
}

std::optional<std::size_t> UnitOrder::next_in_forward() const {
  const auto& [units, position, is_complete] = order();
  if (!is_complete || position == units.size() || units[position] == kBackward) return std::nullopt;
  return units[position];
}

void UnitOrder::reverse() {
  if (!std::exchange(in_forward_, false)) return;
  auto& [units, position, is_complete] = order();
  if (!is_complete) return units.push_back(kBackward);
  const auto found = std::find(units.begin() + static_cast<std::ptrdiff_t>(position), units.end(), kBackward);
  if (found != units.end()) position = static_cast<std::size_t>(found - units.begin()) + 1;
}

bool UnitOrder::is_ahead(const Call& call, Side side) const {
  return std::ranges::any_of(sequence_,
                             [&](const Mark& mark) { return mark.call.number == call.number && mark.side == side; });
}

UnitOrder::Step UnitOrder::step_back() {
  const Mark last = sequence_.back();
  sequence_.pop_back();
  return {.unit = last.call.unit, .side = last.side};
}

std::optional<std::size_t> UnitOrder::next_in_backward() const {
  const auto found =
      std::find_if(sequence_.rbegin(), sequence_.rend(), [](const Mark& mark) { return mark.side == Side::kEnd; });
  if (found == sequence_.rend()) return std::nullopt;
  return found->call.unit;
}

bool UnitOrder::goes_on_with(std::size_t unit) const {
  return !sequence_.empty() && sequence_.back().side == Side::kEnd && sequence_.back().call.unit == unit;
}

bool UnitOrder::comes_again_to(std::size_t unit) const {
  return std::ranges::any_of(sequence_, [&](const Mark& mark) { return mark.call.unit == unit; });
}

}  // namespace d9d
