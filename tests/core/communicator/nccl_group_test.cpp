#include "d9d/core/communicator/process_group/nccl_group.h"

#include <dlfcn.h>

#include <filesystem>
#include <iostream>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "d9d/base/check.h"

#include "tests/support/gpu_test.h"

namespace d9d::nccl_group_test {
namespace {

std::filesystem::path library() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libd9d_cuda.so";
}

TEST(NcclGroups, Are_refused_by_name_without_a_device) {
  if (test::has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  try {
    (void)nccl_groups(c10::Device(c10::kCUDA, 0));
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find("[core::nccl] expected a "), 0U) << error.what();
  }
}

// Runs in a separate process, which loads the CUDA half of LibTorch.
[[noreturn]] void open_and_make_a_group() {
  void* const opened = dlopen(library().c_str(), RTLD_NOW);
  if (opened == nullptr) {
    std::cerr << dlerror();
    std::exit(2);
  }
  const auto make = reinterpret_cast<decltype(&d9d_make_nccl_group)>(dlsym(opened, "d9d_make_nccl_group"));
  if (make == nullptr) std::exit(3);
  ProcessGroup group;
  try {
    make(group, c10::make_intrusive<c10d::HashStore>(),
         {.name = "all", .ranks = {0}, .timeout = std::chrono::seconds(1)}, c10::Device(c10::kCUDA, 0));
  } catch (const std::exception& error) {
    std::cerr << error.what();
    std::exit(4);
  }
  std::exit(0);
}

TEST(NcclGroups, The_library_opens_on_a_machine_without_a_device_and_says_that_there_is_none) {
  if (test::has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  if (!std::filesystem::exists(library())) GTEST_SKIP() << "built without CUDA";
  EXPECT_EXIT(open_and_make_a_group(), ::testing::ExitedWithCode(4), "GPU|CUDA");
}

}  // namespace
}  // namespace d9d::nccl_group_test
