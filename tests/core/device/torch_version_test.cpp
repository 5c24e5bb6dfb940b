#include "d9d/core/device/torch_version.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/gpu_test.h"

namespace d9d::torch_version_test {
namespace {

using ::testing::ThrowsMessage;

TEST(TorchVersion, Is_the_one_that_requirements_pin) {
  std::ifstream requirements("requirements.txt");
  const std::string pinned = "torch==" + running_versions().torch;
  bool is_pinned = false;
  for (std::string line; std::getline(requirements, line);) is_pinned = is_pinned || line.starts_with(pinned);
  EXPECT_TRUE(is_pinned) << pinned;
  EXPECT_NO_THROW(check_torch_version());
}

TEST(TorchVersion, Refuses_another_LibTorch) {
  EXPECT_THAT([] { check_versions({.torch = "2.11.0", .nccl = ""}, {.torch = "2.12.1", .nccl = ""}); },
              ThrowsMessage<StateError>("[core::torch_version] expected LibTorch 2.11.0, which this program was built "
                                        "against, got 2.12.1. Install requirements.txt, or build again."));
}

TEST(TorchVersion, Refuses_another_NCCL) {
  EXPECT_THAT([] { check_versions({.torch = "2.11.0", .nccl = "2.28.9"}, {.torch = "2.11.0", .nccl = "2.27.3"}); },
              ThrowsMessage<StateError>(
                  "[core::torch_version] expected NCCL 2.28.9, which LibTorch was built against, got 2.27.3. Install "
                  "requirements.txt, and let no other libnccl.so.2 stand in LD_LIBRARY_PATH or LD_PRELOAD."));
}

class TorchVersionCuda : public test::GpuTest {};

TEST_F(TorchVersionCuda, Names_the_NCCL_that_runs_and_that_LibTorch_was_built_against) {
  EXPECT_THAT(running_versions().nccl, ::testing::MatchesRegex("2[.][0-9]+[.][0-9]+"));
  EXPECT_EQ(built_versions().nccl, running_versions().nccl);
  EXPECT_NO_THROW(check_torch_version());
}

TEST(TorchVersion, Is_told_in_one_line) {
  EXPECT_EQ(describe({.torch = "2.11.0", .nccl = ""}), "LibTorch 2.11.0");
  EXPECT_EQ(describe({.torch = "2.11.0", .nccl = "2.28.9"}), "LibTorch 2.11.0, NCCL 2.28.9");
}

}  // namespace
}  // namespace d9d::torch_version_test
