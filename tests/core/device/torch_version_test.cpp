#include "d9d/core/device/torch_version.h"

#include <fstream>

#include <gtest/gtest.h>

namespace d9d {
namespace {

TEST(TorchVersion, Is_the_one_that_requirements_pin) {
  std::ifstream requirements("requirements.txt");
  const std::string pinned = "torch==" + running_torch_version();
  bool is_pinned = false;
  for (std::string line; std::getline(requirements, line);) is_pinned = is_pinned || line.starts_with(pinned);
  EXPECT_TRUE(is_pinned) << pinned;
  EXPECT_NO_THROW(check_torch_version());
}

}  // namespace
}  // namespace d9d
