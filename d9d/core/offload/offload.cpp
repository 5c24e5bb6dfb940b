#include "d9d/core/offload/offload.h"

#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "d9d/core/offload/storage_memory.h"

namespace d9d {
namespace {

// A view of all bytes of the storage.
at::Tensor bytes_of(const c10::Storage& storage) {
  const auto size = static_cast<std::int64_t>(storage.nbytes());
  return at::empty({0}, at::device(storage.device()).dtype(at::kByte)).set_(storage, 0, {size}, {1});
}

void wait_for_devices(const std::unordered_set<c10::Device>& devices) {
  for (const c10::Device device : devices) {
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

}  // namespace

std::int64_t OffloadedTensors::num_bytes() const {
  std::int64_t sum = 0;
  for (const Sleeping& one : storages_) sum += one.host.numel();
  return sum;
}

OffloadedTensors offload_storages(const std::vector<c10::Storage>& storages, OffloadOptions options) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::StorageImpl*> seen;
  std::unordered_set<c10::Device> devices;
  OffloadedTensors result;
  for (const c10::Storage& storage : storages) {
    if (!has_storage_memory(storage) || storage.nbytes() == 0) continue;
    if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
    devices.insert(storage.device());
    result.storages_.push_back({.storage = storage});
  }
  wait_for_devices(devices);  // other streams may still write
  for (auto& one : result.storages_) {
    const at::Tensor bytes = bytes_of(one.storage);
    one.host = at::empty(bytes.sizes(), at::device(at::kCPU).dtype(at::kByte).pinned_memory(options.pin_memory));
    one.host.copy_(bytes, /*non_blocking=*/true);
  }
  wait_for_devices(devices);
  for (const auto& one : result.storages_) {
    take_storage_memory(one.storage,
                        "[core::offload] expected a tensor that is awake, got one whose memory was moved to "
                        "the host. Call onload_tensors() first.")
        .clear();
  }
  return result;
}

OffloadedTensors offload_tensors(const std::vector<at::Tensor>& tensors, OffloadOptions options) {
  std::vector<c10::Storage> storages;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage() && !tensor.is_cpu()) storages.push_back(tensor.storage());
  }
  return offload_storages(storages, options);
}

void onload_tensors(OffloadedTensors& offloaded) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> in_flight;  // host memory, kept until its bytes have been copied
  std::unordered_set<c10::Device> devices;
  while (!offloaded.storages_.empty()) {
    auto& [storage, host] = offloaded.storages_.back();
    at::Tensor bytes = at::empty(host.sizes(), at::device(storage.device()).dtype(at::kByte));
    bytes.copy_(host, /*non_blocking=*/true);
    const auto memory_owner = bytes.storage();
    set_storage_memory(storage, memory_owner.set_data_ptr(c10::DataPtr(nullptr, storage.device())));
    devices.insert(storage.device());
    in_flight.push_back(std::move(host));
    offloaded.storages_.pop_back();
  }
  wait_for_devices(devices);
}

}  // namespace d9d
