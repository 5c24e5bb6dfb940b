#include "d9d/core/dist_context/dist_context.h"

#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

TEST(DistContext, Refuses_each_degree_above_one_by_its_key) {
  for_each_field<DeviceMeshParameters>([](const auto& field) {
    DeviceMeshParameters mesh;
    mesh.*field.member = 2;
    try {
      const DistContext context({.mesh = mesh, .rank = 0, .device = c10::kCPU, .log = Logger()});
      FAIL() << "accepted " << field.name;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.what(), cat("[core::dist_context] mesh.", field.name,
                                  " = 2: more than one rank is not built in this version. Set it to 1."));
    }
  });
}

}  // namespace
}  // namespace d9d
