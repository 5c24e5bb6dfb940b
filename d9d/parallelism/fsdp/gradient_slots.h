// Memory for the full gradients of sharded units. Backward gives each unit the next slot, the first one after the last.
// A slot can be written again when the reduction that read it has ended.
//
// Example
//   GradientSlots slots(2);
//   slots.set_memory(*ranks, at::empty({2 * num_bytes}, at::kByte));      // for each communicator of shards
//   slots.take(unit);                                                     // backward comes to the unit
//   if (const auto allocate = slots.memory_of(unit)) gradient = allocate(*ranks, num_bytes);
//   slots.give_back(unit, reduced);                                       // its gradient is reduced at that event
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {

// Local. Units are known by their index.
class GradientSlots {
 public:
  // Memory of a slot, kByte [num_bytes]: parts for one communicator follow each other in the order of the calls.
  using Allocate = std::function<at::Tensor(const Communicator& ranks, std::int64_t num_bytes)>;

  // Without slots, take() does nothing.
  explicit GradientSlots(std::size_t num_slots = 0) : slots_(num_slots) {}

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(slots_.size()); }

  // memory: kByte, size() times the bytes that the largest unit needs for `ranks`. Until drop_memory().
  void set_memory(const Communicator& ranks, const at::Tensor& memory);
  [[nodiscard]] bool has_memory(const Communicator& ranks) const { return memory_.contains(&ranks); }
  void drop_memory(const Communicator& ranks) { memory_.erase(&ranks); }

  // The unit gets the next slot, unless it has one or another unit holds that one.
  void take(std::size_t unit);
  // The current stream waits until the unit's slot can be written. Empty where the unit has no slot.
  [[nodiscard]] Allocate memory_of(std::size_t unit) const;
  // The slot of the unit, if it has one, can be written again after `reduced`.
  void give_back(std::size_t unit, const StreamEvent& reduced);
  // No unit has a slot.
  void clear();
  // As clear(), and the first slot is the next one: ranks that an exception has stopped at different units agree again.
  void abandon();

 private:
  struct Slot {
    std::optional<std::size_t> unit;  // that has it
    StreamEvent reduced;              // the reduction that last read it
  };

  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  std::map<const Communicator*, at::Tensor> memory_;  // kByte [slots, bytes of the largest unit]
};

}  // namespace d9d
