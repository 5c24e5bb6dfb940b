// Frees the device memory of tensors for other uses: tensors move to the host and back while their objects stay the
// same.
//
// Example
//   OffloadedTensors asleep = offload_tensors({weight, gradient, moment}, {.pin_memory = true});
//   ...                                             // their device memory is free; using them throws c10::Error
//   onload_tensors(asleep);                         // the same objects, values, views and placements
//
// Whole storages are offloaded. The memory of a storage is exchanged, so all tensors that view it move together: views
// remain views of one storage, and all handles of parameters and DTensors remain valid. Storages on the CPU are left as
// they are. Local, but subsystems whose tensors take part in collectives must be offloaded on all ranks.
//
// Do not use it for storages over memory that another object owns, such as slots of a gather ring or memory of other
// processes. The owner restores those itself (set_storage_memory of storage_memory.h).
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/enum_names.h"
#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

struct OffloadOptions {
  bool pin_memory = false;  // page-locked host memory: faster copies, but it cannot be swapped out
};

// Storages whose bytes are on the host. Destroying it loses their values: the tensors can never be used again.
class OffloadedTensors {
 public:
  OffloadedTensors() = default;
  OffloadedTensors(OffloadedTensors&&) = default;
  OffloadedTensors& operator=(OffloadedTensors&&) = default;
  OffloadedTensors(const OffloadedTensors&) = delete;
  OffloadedTensors& operator=(const OffloadedTensors&) = delete;
  ~OffloadedTensors() = default;

  [[nodiscard]] bool is_empty() const { return storages_.empty(); }
  [[nodiscard]] std::int64_t num_bytes() const;  // bytes that were freed on devices

 private:
  friend OffloadedTensors offload_storages(const std::vector<c10::Storage>& storages, OffloadOptions options);
  friend void onload_tensors(OffloadedTensors& offloaded);
  struct Sleeping {
    c10::Storage storage;
    at::Tensor host;  // [bytes]
  };
  std::vector<Sleeping> storages_;
};

// Offloads the storages of `tensors`, each once; tensors may be undefined. A storage that already has no memory (asleep
// in another OffloadedTensors, a parameter that is not gathered, the meta device) is skipped: the owner that took its
// memory restores it. Waits for the devices before and after the copies. If it throws (no host memory), nothing has
// changed.
[[nodiscard]] OffloadedTensors offload_tensors(const std::vector<at::Tensor>& tensors, OffloadOptions options = {});
// Does the same for storages, and offloads those of the CPU too.
[[nodiscard]] OffloadedTensors offload_storages(const std::vector<c10::Storage>& storages, OffloadOptions options = {});

// Allocates on the storages' devices, copies, and waits for the copies; `offloaded` is empty afterwards. If it throws
// (no device memory), the storages that are not restored yet remain in `offloaded`: free memory and call it again.
void onload_tensors(OffloadedTensors& offloaded);

// Resources that a job releases while it sleeps.
enum class SleepTag { kTensorStates, kComms };
constexpr auto enum_names(SleepTag) {
  return std::to_array<EnumName<SleepTag>>({{SleepTag::kTensorStates, "tensor_states"}, {SleepTag::kComms, "comms"}});
}
using SleepTags = std::set<SleepTag>;
[[nodiscard]] inline SleepTags default_sleep_tags() { return {SleepTag::kTensorStates}; }

struct OffloadContext {
  const DistContext& dist_context;
  OffloadOptions options;
};
struct OnloadContext {
  const DistContext& dist_context;
};

// A subsystem with tensors on a device. offload() followed by onload() changes nothing observable except addresses:
// tensor objects, keys of state, meshes and placements stay the same. Both are called on all ranks, between steps, and
// throw StateError if the subsystem is in the requested state already.
class Offloadable {
 public:
  virtual ~Offloadable() = default;
  virtual void offload(const OffloadContext& context) = 0;
  virtual void onload(const OnloadContext& context) = 0;
  [[nodiscard]] virtual bool is_offloaded() const = 0;
};

}  // namespace d9d
