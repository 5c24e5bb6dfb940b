#include "d9d/core/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/python.h"
#include "tests/support/ranks.h"

namespace d9d::device_mesh_test {
namespace {

using test::lone_rank;
using test::run_python;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(DeviceMesh, Lays_ranks_out_with_the_last_axis_fastest) {
  const DeviceMesh mesh("dense", {{"dp", 4}, {"tp", 2}}, lone_rank(7, 8));
  EXPECT_EQ(mesh.axis_size("dp"), 4);
  EXPECT_THAT(mesh.coordinate(), ElementsAre(3, 1));
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(mesh.index(), 7);
  EXPECT_EQ(DeviceMesh().num_ranks(), 1);
}

TEST(DeviceMesh, Slices_to_the_ranks_that_differ_in_the_axes) {
  const DeviceMesh mesh("m", {{"a", 2}, {"b", 3}, {"c", 2}}, lone_rank(9, 12));  // coordinate 1, 1, 1
  EXPECT_THAT(mesh.slice({"b"}).ranks(), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.slice({"a", "c"}).ranks(), ElementsAre(2, 3, 8, 9));
  EXPECT_EQ(mesh.slice({"a", "c"}).index(), 3);
  EXPECT_THAT(mesh.slice({"a", "b"}).slice({"a"}).ranks(), ElementsAre(3, 9));
  EXPECT_EQ(mesh.slice({"a", "c"}).name(), "m:a+c");
}

TEST(DeviceMesh, Places_ranks_and_slices_as_torch_does) {
  const std::string output = run_python("tests/core/mesh/device_mesh_oracle.py", {R"({"a": 2, "b": 3, "c": 2})"});
  const auto oracle = nlohmann::json::parse(output.substr(output.find("[{")));
  ASSERT_EQ(oracle.size(), 12);
  for (std::int64_t rank = 0; rank < 12; ++rank) {
    const auto& expected = oracle[static_cast<std::size_t>(rank)];
    const DeviceMesh mesh("m", {{"a", 2}, {"b", 3}, {"c", 2}}, lone_rank(rank, 12));
    EXPECT_EQ(mesh.coordinate(), expected["coordinate"].get<std::vector<std::int64_t>>());
    for (const std::vector<std::string>& axes : std::vector<std::vector<std::string>>{
             {"a"}, {"b"}, {"c"}, {"a", "b"}, {"a", "c"}, {"b", "c"}, {"a", "b", "c"}}) {
      std::string name;
      for (const std::string& axis : axes) name += (name.empty() ? "" : "+") + axis;
      EXPECT_EQ(mesh.slice(axes).ranks(), expected["slices"][name].get<std::vector<std::int64_t>>()) << name;
    }
  }
}

TEST(DeviceMesh, Wants_axes_in_its_own_order) {
  const DeviceMesh mesh("m", {{"a", 2}, {"b", 2}}, lone_rank(0, 4));
  EXPECT_THAT([&] { (void)mesh.slice({"b", "a"}); }, ThrowsMessage<ConfigError>(HasSubstr("got 'a' too late")));
}

TEST(DeviceMesh, Names_the_known_axes_in_errors) {
  const DeviceMesh mesh("dense", {{"dp", 4}, {"tp", 2}}, lone_rank(0, 8));
  EXPECT_THAT([&] { (void)mesh.axis_size("pp"); },
              ThrowsMessage<ConfigError>(HasSubstr("{dp, tp} of mesh 'dense', got 'pp'")));
}

TEST(DeviceMesh, Rejects_bad_axes) {
  EXPECT_THROW(DeviceMesh("m", {{"dp", 0}}, lone_rank(0, 1)), ConfigError);
  EXPECT_THROW(DeviceMesh("m", {{"dp", 2}, {"dp", 2}}, lone_rank(0, 4)), ConfigError);
}

TEST(DeviceMesh, Rejects_sizes_that_do_not_multiply_to_the_world) {
  EXPECT_THAT(
      [] {
        DeviceMesh("m", {{"dp", 2}, {"tp", 3}}, lone_rank(0, 4));
      },
      ThrowsMessage<ConfigError>(HasSubstr("to the 4 ranks of the job, got dp=2 x tp=3 = 6")));
}

TEST(DeviceMesh, Shares_one_communicator_among_equal_groups_of_ranks) {
  const std::shared_ptr<World> world = lone_rank(0, 4);
  const DeviceMesh dense("dense", {{"pp", 1}, {"dp", 2}, {"tp", 2}}, world);
  const DeviceMesh batch("batch", {{"data", 2}, {"model", 2}}, world);
  EXPECT_EQ(dense.communicator("dp"), dense.communicator("dp"));
  EXPECT_EQ(dense.communicator("dp"), batch.communicator("data"));
  EXPECT_EQ(dense.communicator("tp"), batch.slice({"model"}).communicator());
  EXPECT_EQ(dense.communicator(), batch.communicator());
  EXPECT_NE(dense.communicator("dp"), dense.communicator("tp"));
}

TEST(DeviceMesh, Cannot_communicate_without_a_world) {
  EXPECT_THAT([] { (void)DeviceMesh().communicator(); },
              ThrowsMessage<StateError>(HasSubstr("Take the meshes of DistContext")));
}

}  // namespace
}  // namespace d9d::device_mesh_test
