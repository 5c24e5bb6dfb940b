#include "d9d/core/offload/storage_memory.h"

#include <optional>
#include <utility>

namespace d9d {
namespace {

// Returns StorageImpl's private flag that makes access throw. A null pointer alone does not protect, since element-wise
// operators read through it. StorageImpl has a setter for the flag but none to clear it; an explicit template
// instantiation may name the private member.
bool& throws_on_access(c10::StorageImpl& storage);
template <bool c10::StorageImpl::*kFlag>
struct StorageFlag {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*kFlag; }
};
template struct StorageFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

bool has_storage_memory(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

c10::DataPtr take_storage_memory(const c10::Storage& storage, std::string reason) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  c10::DataPtr memory = impl.set_data_ptr(c10::DataPtr(nullptr, impl.device()));
  impl.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(reason));
  return memory;
}

void set_storage_memory(const c10::Storage& storage, c10::DataPtr memory) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.release_data_and_set_meta_custom_data_ptr_error_msg_(std::nullopt);
  throws_on_access(impl) = false;
  impl.set_data_ptr_noswap(std::move(memory));  // also makes the storage re-read the flag
}

}  // namespace d9d
