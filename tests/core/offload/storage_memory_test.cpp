#include "d9d/core/offload/storage_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::storage_memory_test {
namespace {

TEST(StorageMemory, Taken_and_given_back_is_the_same_memory) {
  const at::Tensor x = at::ones({4});
  const void* const address = x.const_data_ptr();
  c10::DataPtr memory = take_storage_memory(x.storage(), "gone");
  EXPECT_EQ(memory.get(), address);
  EXPECT_FALSE(has_storage_memory(x.storage()));
  EXPECT_EQ(x.storage().nbytes(), 16U);
  EXPECT_THROW((void)x.sum(), c10::Error);
  set_storage_memory(x.storage(), std::move(memory));
  EXPECT_TRUE(has_storage_memory(x.storage()));
  EXPECT_EQ(x.const_data_ptr(), address);
  EXPECT_EQ(x.sum().item<float>(), 4.0F);
}

TEST(StorageMemory, May_be_borrowed_from_another_tensor) {  // like a parameter that is gathered into a slot
  const at::Tensor slot = at::full({4}, 2.0F);
  const at::Tensor parameter = at::zeros({4});
  take_storage_memory(parameter.storage(), "resharded").clear();
  set_storage_memory(parameter.storage(), c10::DataPtr(slot.mutable_data_ptr(), at::kCPU));
  parameter.add_(1);
  EXPECT_TRUE(at::equal(slot, at::full({4}, 3.0F)));
}

}  // namespace
}  // namespace d9d::storage_memory_test
