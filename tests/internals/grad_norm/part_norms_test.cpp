#include "d9d/internals/grad_norm/part_norms.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace d9d::test::part_norms_test {
namespace {

constexpr double kRounding = 1e-12;  // of float64 sums of some hundred squares

// Parameters [8, 8] whose gradient is a number everywhere, on a mesh pp x ep x tp.
class Stage : public Module {
 public:
  void add(const std::string& name, const DeviceMesh& mesh,
           const std::vector<std::pair<std::string, Placement>>& placements, double gradient) {
    const ParameterPtr parameter = register_parameter(name, {.shape = {8, 8}, .init = init::ones()});
    for (const auto& [axis, placement] : placements) parameter->place(mesh, axis, placement, placement);
    parameter->to(at::kDouble);
    parameter->materialize(at::kCPU);
    parameter->stored().mutable_grad() = at::full_like(parameter->stored(), gradient);
  }
};

double norm_of(double gradient) { return 8.0 * gradient; }

// Each stage calls as often as the other, for other layers.
TEST(GradientNorms, Are_those_of_the_parts_of_all_stages_on_every_rank) {
  for (const RankBackend backend : {RankBackend::kThreads, RankBackend::kGloo}) {
    run_ranks(backend, 8, [](World& world) {
      const DeviceMesh mesh("m", {{"pp", 2}, {"ep", 2}, {"tp", 2}}, borrowed(world));
      Stage stage;
      stage.add("embedding", mesh, {{"tp", Shard{0}}}, 7.0);  // tied: both stages have it
      if (mesh.axis_coordinate("pp") == 0) {
        stage.add("first", mesh, {{"ep", Shard{0}}, {"tp", Shard{1}}}, 2.0);
      } else {
        stage.add("second", mesh, {{"ep", Replicate{}}}, 3.0);
        stage.add("third", mesh, {{"tp", Shard{1}}}, 4.0);
        stage.add("frozen", mesh, {}, 9.0);
        stage.named_parameters().back().second->set_requires_grad(false);
      }
      const auto part = [](const std::string& name) { return name == "third" ? std::string("second") : name; };
      const auto norms = gradient_norms({stage}, part, mesh.slice({"pp"}));
      ASSERT_EQ(norms.size(), 3);
      EXPECT_NEAR(norms.at("embedding"), norm_of(7.0), kRounding);
      EXPECT_NEAR(norms.at("first"), norm_of(2.0), kRounding);
      EXPECT_NEAR(norms.at("second"), norm_of(5.0), kRounding);  // of 3 and 4
    });
  }
}

TEST(GradientNorms, Of_one_rank_need_no_others) {
  Stage stage;
  stage.add("first", DeviceMesh(), {}, 2.0);
  stage.add("second", DeviceMesh(), {}, 3.0);
  const auto norms = gradient_norms(
      {stage}, [](const std::string& name) { return name == "first" ? name : std::string(); }, DeviceMesh());
  ASSERT_EQ(norms.size(), 1);
  EXPECT_NEAR(norms.at("first"), norm_of(2.0), kRounding);
}

TEST(PartNorms, Of_parameters_are_those_of_all_stages_and_shards_frozen_ones_too) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh mesh("m", {{"pp", 2}, {"tp", 2}}, borrowed(world));
    Stage stage;
    stage.add("embedding", mesh, {{"tp", Shard{0}}}, 7.0);
    if (mesh.axis_coordinate("pp") == 1) {
      stage.add("second", mesh, {{"tp", Shard{1}}}, 4.0);
      stage.add("frozen", mesh, {}, 9.0);
      stage.named_parameters().back().second->set_requires_grad(false);
    }
    double factor = 1;
    for (const auto& [name, parameter] : stage.named_parameters()) parameter->stored().detach().fill_(factor++);
    const PartNorms norms(stage.named_parameters(), layer_of, mesh.slice({"pp"}));
    ASSERT_EQ(norms.parts().size(), 3);
    EXPECT_EQ(norms.parts()[0].name, "embedding");
    EXPECT_EQ(norms.parts()[1].name, "frozen");
    EXPECT_FALSE(norms.parts()[1].is_trained);
    EXPECT_TRUE(norms.parts()[2].is_trained);
    const at::Tensor expected = at::tensor({norm_of(1), norm_of(3), norm_of(2)}, at::kDouble);
    EXPECT_TRUE(at::allclose(norms.of_parameters(), expected, kRounding, kRounding)) << norms.of_parameters();
  });
}

TEST(PartNorms, That_are_not_finite_leave_the_others_as_they_are) {
  Stage stage;
  stage.add("first", DeviceMesh(), {}, std::nan(""));
  stage.add("second", DeviceMesh(), {}, 3.0);
  const at::Tensor norms = PartNorms(stage.named_parameters(), layer_of, DeviceMesh()).of_gradients();
  EXPECT_TRUE(std::isnan(norms[0].item<double>()));
  EXPECT_NEAR(norms[1].item<double>(), norm_of(3.0), kRounding);
}

TEST(LayerOf, Is_the_path_to_the_first_number_or_two_components) {
  EXPECT_EQ(layer_of("model.layers.7.mlp.experts.3.weight"), "model.layers.7");
  EXPECT_EQ(layer_of("blocks.0.weight"), "blocks.0");
  EXPECT_EQ(layer_of("model.embed_tokens.token_embedding.regular.weight"), "model.embed_tokens");
  EXPECT_EQ(layer_of("model.norm.weight"), "model.norm");
  EXPECT_EQ(layer_of("first.weight"), "first");
  EXPECT_EQ(layer_of("scale"), "scale");
  EXPECT_EQ(layer_of("net.conv1d.2"), "net.conv1d");  // the number is the parameter's own name
}

TEST(ByPrefix, Is_the_first_dotted_parts_of_a_name) {
  EXPECT_EQ(by_prefix(3)("model.layers.7.mlp.up.weight"), "model.layers.7");
  EXPECT_EQ(by_prefix(1)("model.norm.weight"), "model");
  EXPECT_EQ(by_prefix(4)("model.norm.weight"), "model.norm.weight");
}

}  // namespace
}  // namespace d9d::test::part_norms_test
