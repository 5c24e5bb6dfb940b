#include "d9d/parallelism/fsdp/unit_gathers.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/device/named_range.h"

namespace d9d {

void UnitGathers::materialize(at::Device device, bool reshards) {
  device_ = device;
  stream_.emplace(device);
  entries_.resize(units_.size());
  std::vector<std::int64_t> unit_bytes;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i]->stays_gathered() || !reshards) continue;
    entries_[i].arena_index = unit_bytes.size();
    unit_bytes.push_back(units_[i]->gathered_bytes());
  }
  arena_.emplace(std::move(unit_bytes), device);
}

bool UnitGathers::begin_reading() {
  if (std::exchange(is_reading_, true)) return false;
  (void)stream_->run([&] {
    for (const auto& unit : units_) unit->update_gathered_slices();
    for (const ShardExchange& each : exchanges_.all()) each.gather->begin();
  });
  return true;
}

void UnitGathers::end_reading() {
  if (!std::exchange(is_reading_, false)) return;
  const StreamEvent ended = stream_->run([&] {
    for (const ShardExchange& each : exchanges_.all()) each.gather->end();
  });
  ended.wait();
}

void UnitGathers::gather(std::size_t index) {
  FsdpUnit& unit = *units_[index];
  Entry& entry = entries_[index];
  if (unit.is_gathered()) return;
  at::Tensor memory = entry.own_memory;
  if (entry.arena_index) {
    memory = arena_->acquire(*entry.arena_index);
  } else if (!memory.defined()) {
    memory = entry.own_memory = at::empty({unit.gathered_bytes()}, at::TensorOptions(device_).dtype(at::kByte));
  }
  if (unit.gathers_by_collective()) print_.add(index, OrderPrint::What::kGathered);
  const NamedRange range([&] { return cat("gather ", unit.name()); });
  entry.ready = stream_->run([&] {
    if (!is_reading_) unit.update_gathered_slices();
    unit.gather(memory);
  });
  ++num_gathers_;
}

void UnitGathers::release(std::size_t index) {
  if (!units_[index]->is_gathered()) return;
  units_[index]->release();
  if (entries_[index].arena_index) arena_->release(*entries_[index].arena_index);
}

void UnitGathers::abandon() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    wait(i);  // a gather may still write memory that is about to be released
    release(i);
  }
  is_reading_ = false;
  for (const ShardExchange& each : exchanges_.all()) each.gather->abandon();
}

void UnitGathers::close() {
  for (const ShardExchange& each : exchanges_.all()) each.gather->close();
}

void UnitGathers::free() {
  for (Entry& entry : entries_) entry.own_memory = at::Tensor();
  arena_->free();
}

}  // namespace d9d
