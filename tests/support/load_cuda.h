// Included by programs of tests that use a GPU: it is loaded before the first test, since LibTorch keeps its first
// answer to whether there is a device.
#pragma once

#include <gtest/gtest.h>

#include "d9d/core/device/cuda_runtime.h"

namespace d9d::test {

class LoadCuda : public ::testing::Environment {
  void SetUp() override { (void)load_cuda(); }
};
inline const ::testing::Environment* const kLoadCuda = ::testing::AddGlobalTestEnvironment(new LoadCuda);

}  // namespace d9d::test
