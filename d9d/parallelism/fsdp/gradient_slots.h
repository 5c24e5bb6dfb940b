// Memory for the full gradients of sharded units. Backward assigns slots to units in rotation. A slot can be written
// again when the reduction that read it has ended.
//
// Example
//   GradientSlots slots(2);
//   slots.set_memory(*ranks, at::empty({2 * num_bytes}, at::kByte));      // for each communicator of shards
//   slots.take(unit);                                                     // backward of the unit begins
//   if (const auto allocate = slots.memory_of(unit)) gradient = allocate(*ranks, num_bytes);
//   slots.give_back(unit, reduced);                                       // event `reduced`: its reduction has ended
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

// Local. Units are identified by their index.
class GradientSlots {
 public:
  // Allocates kByte [num_bytes] in a slot's memory for `ranks`. Successive calls return successive parts.
  using Allocate = std::function<at::Tensor(const Communicator& ranks, std::int64_t num_bytes)>;

  // Without slots, take() does nothing.
  explicit GradientSlots(std::size_t num_slots = 0) : slots_(num_slots) {}

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(slots_.size()); }

  // Sets the memory of all slots for `ranks`: kByte, size() times the bytes of the unit that needs the most. It is kept
  // until drop_memory().
  void set_memory(const Communicator& ranks, const at::Tensor& memory);
  [[nodiscard]] bool has_memory(const Communicator& ranks) const { return memory_.contains(&ranks); }
  void drop_memory(const Communicator& ranks) { memory_.erase(&ranks); }

  // Assigns the next slot to the unit. Does nothing if the unit has a slot or the next slot is held by another unit.
  void take(std::size_t unit);
  // Makes the current stream wait until the unit's slot can be written. Returns an empty function if the unit has no
  // slot.
  [[nodiscard]] Allocate memory_of(std::size_t unit) const;
  // Frees the unit's slot, if it has one; it can be written again after `reduced`.
  void give_back(std::size_t unit, const StreamEvent& reduced);
  // Frees all slots.
  void clear();
  // Frees all slots and begins again with the first, so that ranks that an exception stopped at different units agree
  // on the next slot.
  void abandon();

 private:
  struct Slot {
    std::optional<std::size_t> unit;  // the unit that has the slot
    StreamEvent reduced;              // the reduction that last read it
  };

  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  std::map<const Communicator*, at::Tensor> memory_;  // kByte [slots, bytes of the largest unit]
};

}  // namespace d9d
