#include "d9d/core/mesh/device_mesh_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

namespace d9d::device_mesh_parameters_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const DeviceMeshParameters& mesh) {
  try {
    mesh.validate(ConfigPath{.keys = "mesh"});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DeviceMeshParameters, Multiply_to_the_world_size_without_expert_parallel) {
  const DeviceMeshParameters mesh{.pipeline_parallel = 2,
                                  .data_parallel_replicate = 3,
                                  .data_parallel_shard = 4,
                                  .context_parallel_replicate = 5,
                                  .context_parallel_shard = 7,
                                  .tensor_parallel = 11,
                                  .expert_parallel = 6};
  EXPECT_EQ(mesh.world_size(), 2 * 3 * 4 * 5 * 7 * 11);
  EXPECT_EQ(error_of(mesh), "accepted");
}

TEST(DeviceMeshParameters, Have_exactly_the_axes_of_degree_above_one) {
  using Mesh = DeviceMeshParameters;
  const std::vector<std::pair<std::int64_t Mesh::*, bool (Mesh::*)() const>> axes = {
      {&Mesh::pipeline_parallel, &Mesh::has_pipeline_parallel},
      {&Mesh::data_parallel_replicate, &Mesh::has_data_parallel_replicate},
      {&Mesh::data_parallel_shard, &Mesh::has_data_parallel_shard},
      {&Mesh::context_parallel_replicate, &Mesh::has_context_parallel_replicate},
      {&Mesh::context_parallel_shard, &Mesh::has_context_parallel_shard},
      {&Mesh::tensor_parallel, &Mesh::has_tensor_parallel},
      {&Mesh::expert_parallel, &Mesh::has_expert_parallel}};
  EXPECT_FALSE(Mesh{}.is_distributed());
  for (const auto& [degree, has] : axes) {
    Mesh mesh;
    mesh.*degree = 2;
    EXPECT_TRUE(mesh.is_distributed());
    for (const auto& [other_degree, other_has] : axes) EXPECT_EQ((mesh.*other_has)(), other_degree == degree);
  }
}

TEST(DeviceMeshParameters, Refuse_a_degree_below_one) {
  EXPECT_EQ(error_of({.tensor_parallel = 0}),
            "[config] mesh.tensor_parallel: expected a number >= 1, got 0. 1 turns the axis off.");
}

TEST(DeviceMeshParameters, Refuse_experts_that_do_not_divide_their_ranks) {
  EXPECT_EQ(error_of({.data_parallel_shard = 4, .tensor_parallel = 2, .expert_parallel = 3}),
            "[config] mesh: expected data_parallel_replicate x data_parallel_shard x context_parallel_replicate x "
            "context_parallel_shard x tensor_parallel = 1 x 4 x 1 x 1 x 2 = 8 to be divisible by expert_parallel, got "
            "expert_parallel = 3. "
            "Experts are spread over the ranks of these five axes: change one of the degrees.");
}

TEST(DeviceMeshParameters, Say_what_divides_a_sequence) {
  EXPECT_EQ(DeviceMeshParameters{.data_parallel_shard = 4}.position_divisor(), 1);
  EXPECT_EQ(DeviceMeshParameters{.tensor_parallel = 3}.position_divisor(), 3);
  EXPECT_EQ((DeviceMeshParameters{.context_parallel_replicate = 2, .context_parallel_shard = 3}.position_divisor()),
            12);
  EXPECT_EQ((DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 2}.position_divisor()), 4);
  EXPECT_EQ((DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 3}.position_divisor()), 12);
}

TEST(DeviceMeshParameters, Refuse_a_world_that_no_integer_holds) {
  EXPECT_THAT(error_of({.pipeline_parallel = 1'000'000, .tensor_parallel = 2}),
              HasSubstr("expected at most 1000000 ranks"));
  EXPECT_THAT(error_of({.data_parallel_shard = std::int64_t{1} << 62, .tensor_parallel = 4}),
              HasSubstr("expected at most 1000000 ranks"));
}

TEST(DeviceMeshParameters, Are_validated_when_parsed) {
  EXPECT_EQ(parse_record<DeviceMeshParameters>(Json::parse(R"({"data_parallel_shard": 4, "expert_parallel": 2})")),
            (DeviceMeshParameters{.data_parallel_shard = 4, .expert_parallel = 2}));
  EXPECT_THROW(std::ignore = parse_record<DeviceMeshParameters>(Json::parse(R"({"expert_parallel": 2})")), ConfigError);
}

}  // namespace
}  // namespace d9d::device_mesh_parameters_test
