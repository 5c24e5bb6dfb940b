// The memory that the activations of a job may take, in JSON:
//
//   "memory_budget": {"device": "auto", "host": "64GiB"}
#pragma once

#include <optional>

#include "d9d/base/config/byte_size.h"
#include "d9d/base/record.h"

namespace d9d {

// A size, or "auto": nine tenths of the memory that is free when the job starts. CPUs need a size.
struct DeviceBudget {
  std::optional<ByteSize> size = {};  // none: auto
  bool operator==(const DeviceBudget&) const = default;
};

template <>
const ValueType& json_type<DeviceBudget>();

// The memory of a rank within which the job chooses what its layers keep, recompute and offload (decision 0035).
struct MemoryBudgetConfig {
  DeviceBudget device = {};  // the most that tensors of a rank take of its device in a step
  ByteSize host = {};        // page-locked host memory of a rank for activations that wait there; 0: none do

  static constexpr auto fields() {
    using Budget = MemoryBudgetConfig;
    return record<Budget>(defaulted("device", &Budget::device), defaulted("host", &Budget::host));
  }
};

}  // namespace d9d
