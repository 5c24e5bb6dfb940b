// Device memory lent to someone else: tensors go to the host and come back, as the same objects.
//
// Example
//   OffloadedTensors asleep = offload_tensors({weight, gradient, moment}, {.pin_memory = true});
//   ...                                             // their device memory is free; using them throws c10::Error
//   onload_tensors(asleep);                         // the same objects, values, views and placements
//
// The unit is the storage. Its memory is exchanged underneath, so every tensor that views it goes and comes with it:
// views stay views of one storage, parameters and DTensors keep their handles, whoever holds them. Storages on the CPU
// stay where they are, and usable. Local, but subsystems whose tensors meet in collectives sleep on all ranks.
//
// Not for storages over memory that another object owns, such as slots of a gather ring or memory of other processes:
// the owner brings those back itself (set_storage_memory of storage_memory.h).
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

// Storages that are on the host. Dropping it loses their values: the tensors can never be used again.
class OffloadedTensors {
 public:
  OffloadedTensors() = default;
  OffloadedTensors(OffloadedTensors&&) = default;
  OffloadedTensors& operator=(OffloadedTensors&&) = default;
  OffloadedTensors(const OffloadedTensors&) = delete;
  OffloadedTensors& operator=(const OffloadedTensors&) = delete;
  ~OffloadedTensors() = default;

  [[nodiscard]] bool is_empty() const { return storages_.empty(); }
  [[nodiscard]] std::int64_t num_bytes() const;  // that the devices have got back

 private:
  friend OffloadedTensors offload_storages(const std::vector<c10::Storage>& storages, OffloadOptions options);
  friend void onload_tensors(OffloadedTensors& offloaded);
  struct Sleeping {
    c10::Storage storage;
    at::Tensor host;  // [bytes]
  };
  std::vector<Sleeping> storages_;
};

// The storages of `tensors`, each once; tensors may be undefined. A storage that has no memory already (asleep in
// another OffloadedTensors, a parameter that is not gathered, the meta device) is left alone: who took it brings it
// back. Waits for the devices, before the copies and after them. If it throws (no host memory), nothing has changed.
[[nodiscard]] OffloadedTensors offload_tensors(const std::vector<at::Tensor>& tensors, OffloadOptions options = {});
// The same for storages of any device, the CPU's too.
[[nodiscard]] OffloadedTensors offload_storages(const std::vector<c10::Storage>& storages, OffloadOptions options = {});

// Allocates on the devices where the storages were, copies, and waits for the copies; `offloaded` is empty afterwards.
// If it throws (no device memory), what is not back yet is still in `offloaded`: free memory and call it again.
void onload_tensors(OffloadedTensors& offloaded);

// What a job gives up while it sleeps.
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

// A subsystem with tensors on a device. offload() and then onload() change nothing that can be observed but addresses:
// the same tensor objects, the same keys of state, the same meshes and placements. Both are called on all ranks,
// between steps, and throw StateError if the subsystem is there already.
class Offloadable {
 public:
  virtual ~Offloadable() = default;
  virtual void offload(const OffloadContext& context) = 0;
  virtual void onload(const OnloadContext& context) = 0;
  [[nodiscard]] virtual bool is_offloaded() const = 0;
};

}  // namespace d9d
