// A user's own layers, laid out by hand with the functions that the default layouts use.
#include "tests/layout/own_layer.h"

#include <gtest/gtest.h>

#include "d9d/core/dist_context/dist_context.h"

#include "tests/layout/layout_case.h"
#include "tests/layout/layout_model.h"
#include "tests/support/ranks.h"

namespace d9d::test::own_layer_test {
namespace {

constexpr OwnLayers kExperts = {.has_experts = true, .has_shared_expert = true};

bool is_partial(const Parameter& parameter, const char* axis) {
  return parameter.gradient_placements()[parameter.mesh().axis_index(axis)] == Placement(Partial{ReduceOp::kSum});
}

// Checks the placements that a layer of experts has on rank 0 of a mesh of four, laid out by hand.
void expect_placements(const Layout& layout, const std::function<void(const OwnLayer& layer)>& expect) {
  const LayoutJob job{.family = kOwnLayers, .own = kExperts, .num_layers = 1};
  run_ranks(RankBackend::kThreads, layout.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = layout.mesh, .world = borrowed(world), .local_rank = world.rank()});
    const auto model = make_layout_model(job, layout.checkpoints);
    parallelize(context, *model, layout);
    if (world.rank() == 0) expect(dynamic_cast<const OwnLayer&>(*model->backbone->layers().front()));
  });
}

TEST(OwnLayersByHand, Declare_replicated_parameters_and_experts_on_their_owners) {
  const Layout layout{.mesh = {.data_parallel_replicate = 4, .expert_parallel = 2},
                      .composition = Composition::kLayersByHand};
  expect_placements(layout, [](const OwnLayer& layer) {
    for (const Parameter* parameter :
         {layer.scale.get(), layer.experts->router->named_parameters().front().second.get(),
          layer.experts->shared_expert->gate->weight.get()}) {
      EXPECT_EQ(parameter->mesh().name(), "dense");
      EXPECT_EQ(parameter->local().sizes(), parameter->global_shape());
      EXPECT_TRUE(is_partial(*parameter, "dp_replicate"));
    }
    for (const auto& [name, weight] : layer.experts->grouped_experts->named_parameters()) {
      EXPECT_EQ(weight->mesh().name(), "expert") << name;
      EXPECT_EQ(weight->placements()[weight->mesh().axis_index("ep_shard")], Placement(Shard{0})) << name;
      EXPECT_EQ(weight->gradient_placements()[weight->mesh().axis_index("ep_shard")], Placement(Shard{0})) << name;
      EXPECT_TRUE(is_partial(*weight, "ep_replicate")) << name;
      EXPECT_EQ(weight->local().size(0), kLayoutExperts / 2) << name;
    }
  });
}

TEST(OwnLayersByHand, Declare_slices_of_sharded_units) {
  const Layout layout{.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
                      .composition = Composition::kLayersByHand};
  expect_placements(layout, [](const OwnLayer& layer) {
    for (const auto& [name, parameter] : layer.named_parameters()) {
      EXPECT_TRUE(has_flat_shard(parameter->placements())) << name;
      EXPECT_TRUE(is_partial(*parameter, "dp_replicate")) << name;
      EXPECT_FALSE(is_partial(*parameter, "dp_cp_shard")) << name;
    }
  });
}

TEST(OwnLayersByHand, Train_as_on_one_rank) {
  for (const OwnLayers& own : {OwnLayers{}, kExperts}) {
    for (const Composition composition : {Composition::kLayersByHand, Composition::kGroupsByHand}) {
      for (const DeviceMeshParameters& mesh :
           {DeviceMeshParameters{.data_parallel_replicate = 4, .expert_parallel = 2},
            DeviceMeshParameters{.data_parallel_shard = 4, .expert_parallel = 2},
            DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 2},
            DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_replicate = 2}}) {
        const LayoutCase drawn{.job = {.family = kOwnLayers, .own = own, .num_microbatches = 4, .num_steps = 2},
                               .layout = {.mesh = mesh, .composition = composition}};
        const std::string fault = fault_of(drawn);
        EXPECT_TRUE(fault.empty()) << to_source(drawn) << "\n" << fault;
      }
    }
  }
}

}  // namespace
}  // namespace d9d::test::own_layer_test
