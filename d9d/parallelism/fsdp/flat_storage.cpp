#include "d9d/parallelism/fsdp/flat_storage.h"

#include <ATen/ATen.h>

#include "d9d/core/offload/storage_memory.h"

namespace d9d {
namespace {

constexpr const char* kReason =
    "[parallelism::fsdp] a parameter's local() was used while its unit is not gathered. In forward, call the module "
    "through its ModulePtr, or make the module that uses it a part of the unit; elsewhere, as in handlers of events, "
    "use stored(), which is this rank's part.";

}  // namespace

FlatStorage::FlatStorage(std::int64_t numel, const at::TensorOptions& options) : tensor_(at::empty({0}, options)) {
  c10::StorageImpl& storage = *tensor_.storage().unsafeGetStorageImpl();
  storage.set_resizable(false);
  (void)take_storage_memory(tensor_.storage(), kReason);
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  storage.set_nbytes(static_cast<std::size_t>(num_bytes()));  // stays set, so that views can be made while detached
}

std::int64_t FlatStorage::num_bytes() const { return tensor_.numel() * tensor_.element_size(); }

void FlatStorage::attach(const at::Tensor& memory) {
  memory_ = memory;
  set_storage_memory(tensor_.storage(), c10::DataPtr(memory.mutable_data_ptr(), tensor_.device()));  // borrowed
}

void FlatStorage::detach() {
  (void)take_storage_memory(tensor_.storage(), kReason);
  memory_ = at::Tensor();
}

}  // namespace d9d
