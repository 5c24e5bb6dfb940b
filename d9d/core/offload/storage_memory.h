// Takes away the memory under a storage and gives it back, while all tensors that view the storage remain the same
// objects.
//
// Example
//   c10::DataPtr memory = take_storage_memory(x.storage(), "x is on the host");   // dropping it frees the memory
//   x + 1;                                                                        // c10::Error: x is on the host
//   set_storage_memory(x.storage(), std::move(memory));
//
// Shapes, strides and sizes in bytes do not change, so views can be made at any time. Local; does not wait for a
// device.
#pragma once

#include <string>

#include <c10/core/Storage.h>

namespace d9d {

[[nodiscard]] bool has_storage_memory(const c10::Storage& storage);
// From this call on every read or write through the storage throws c10::Error with `reason`.
[[nodiscard]] c10::DataPtr take_storage_memory(const c10::Storage& storage, std::string reason);
// `memory`: at least as many bytes as the storage has, on its device; the DataPtr may own or borrow them.
void set_storage_memory(const c10::Storage& storage, c10::DataPtr memory);

}  // namespace d9d
