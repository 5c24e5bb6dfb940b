#include "d9d/parallelism/fsdp/unit_order.h"

#include <algorithm>
#include <utility>

namespace d9d {

void UnitOrder::begin_microbatch() {
  position_ = 0;
  in_forward_ = false;
}

void UnitOrder::end_microbatch() { is_recorded_ = is_recorded_ || !recorded_.empty(); }

void UnitOrder::put_aside(std::int64_t microbatch) {
  end_microbatch();
  in_forward_ = false;
  aside_[microbatch] = std::exchange(way_, {});
}

void UnitOrder::take_up(std::int64_t microbatch) {
  const auto found = aside_.extract(microbatch);
  if (!found.empty()) way_ = found.mapped();
}

void UnitOrder::abandon() {
  begin_microbatch();
  way_.clear();
  aside_.clear();
  if (!is_recorded_) recorded_.clear();
}

bool UnitOrder::begins_forward() const {
  return !in_forward_ || (is_recorded_ && position_ < recorded_.size() && recorded_[position_] == kTurn);
}

std::optional<UnitOrder::Call> UnitOrder::enter(std::size_t unit) {
  if (!is_recorded_) {
    recorded_.push_back(unit);
  } else {
    while (position_ < recorded_.size() && recorded_[position_] == kTurn) ++position_;  // this time without a backward
    if (position_ == recorded_.size() || recorded_[position_] != unit) return std::nullopt;
    ++position_;
  }
  in_forward_ = true;
  const Call call{.number = num_calls_++, .unit = unit};
  way_.push_back({call, Side::kStart});
  return call;
}

void UnitOrder::leave(const Call& call) { way_.push_back({call, Side::kEnd}); }

void UnitOrder::forget(const Call& call) {
  std::erase_if(way_, [&](const Mark& mark) { return mark.call.number == call.number; });
}

std::optional<std::size_t> UnitOrder::next_in_forward() const {
  if (!is_recorded_ || position_ == recorded_.size() || recorded_[position_] == kTurn) return std::nullopt;
  return recorded_[position_];
}

void UnitOrder::turn() {
  if (!std::exchange(in_forward_, false)) return;
  if (!is_recorded_) return recorded_.push_back(kTurn);
  const auto found = std::find(recorded_.begin() + static_cast<std::ptrdiff_t>(position_), recorded_.end(), kTurn);
  if (found != recorded_.end()) position_ = static_cast<std::size_t>(found - recorded_.begin()) + 1;
}

bool UnitOrder::lies_ahead(const Call& call, Side side) const {
  return std::ranges::any_of(way_,
                             [&](const Mark& mark) { return mark.call.number == call.number && mark.side == side; });
}

UnitOrder::Step UnitOrder::step_back() {
  const Mark last = way_.back();
  way_.pop_back();
  return {.unit = last.call.unit, .side = last.side};
}

std::optional<std::size_t> UnitOrder::next_in_backward() const {
  const auto found = std::find_if(way_.rbegin(), way_.rend(), [](const Mark& mark) { return mark.side == Side::kEnd; });
  if (found == way_.rend()) return std::nullopt;
  return found->call.unit;
}

bool UnitOrder::goes_on_with(std::size_t unit) const {
  return !way_.empty() && way_.back().side == Side::kEnd && way_.back().call.unit == unit;
}

bool UnitOrder::comes_again_to(std::size_t unit) const {
  return std::ranges::any_of(way_, [&](const Mark& mark) { return mark.call.unit == unit; });
}

}  // namespace d9d
