#include "d9d/core/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(DeviceMesh, Knows_sizes_and_coordinates_by_name) {
  const DeviceMesh mesh({{"dp", 4}, {"tp", 2}}, {3, 1});
  EXPECT_EQ(mesh.axis_size("dp"), 4);
  EXPECT_EQ(mesh.axis_coordinate("tp"), 1);
  EXPECT_EQ(mesh.num_ranks(), 8);
  EXPECT_EQ(DeviceMesh().num_ranks(), 1);
}

TEST(DeviceMesh, Names_the_known_axes_in_errors) {
  const DeviceMesh mesh({{"dp", 4}, {"tp", 2}}, {0, 0});
  EXPECT_THAT([&] { (void)mesh.axis_size("pp"); }, ThrowsMessage<ConfigError>(HasSubstr("{dp, tp}, got 'pp'")));
}

TEST(DeviceMesh, Rejects_bad_axes) {
  EXPECT_THROW(DeviceMesh({{"dp", 0}}, {0}), ConfigError);
  EXPECT_THROW(DeviceMesh({{"dp", 2}}, {2}), ConfigError);
  EXPECT_THROW(DeviceMesh({{"dp", 2}, {"dp", 2}}, {0, 0}), ConfigError);
}

}  // namespace
}  // namespace d9d
