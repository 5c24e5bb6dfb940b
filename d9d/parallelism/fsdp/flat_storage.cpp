#include "d9d/parallelism/fsdp/flat_storage.h"

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

namespace d9d {
namespace {

// A null pointer alone does not protect: only typed access checks it, other operators read through it. StorageImpl can
// be told to throw on every access, but has no setter to stop. An explicit instantiation may name private members, and
// fails to compile when one is renamed.
bool& throws_on_access(c10::StorageImpl& storage);
template <bool c10::StorageImpl::*Flag>
struct StorageFlag {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*Flag; }
};
template struct StorageFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

FlatStorage::FlatStorage(std::int64_t numel, const at::TensorOptions& options) : tensor_(at::empty({0}, options)) {
  c10::StorageImpl& storage = storage_of(tensor_);
  storage.set_resizable(false);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "[parallelism::fsdp] a parameter was used while its unit is not gathered. Call the module through its ModulePtr, "
      "or make the module that uses it a part of the unit.");
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  storage.set_nbytes(static_cast<std::size_t>(numel * tensor_.element_size()));  // stays: views can be made any time
}

std::int64_t FlatStorage::num_bytes() const { return tensor_.numel() * tensor_.element_size(); }

void FlatStorage::attach(const at::Tensor& memory) {
  memory_ = memory;
  throws_on_access(storage_of(tensor_)) = false;
  storage_of(tensor_).set_data_ptr_noswap(c10::DataPtr(memory.mutable_data_ptr(), tensor_.device()));  // borrows
}

void FlatStorage::detach() {
  throws_on_access(storage_of(tensor_)) = true;
  storage_of(tensor_).set_data_ptr_noswap(c10::DataPtr(nullptr, tensor_.device()));
  memory_ = at::Tensor();
}

}  // namespace d9d
