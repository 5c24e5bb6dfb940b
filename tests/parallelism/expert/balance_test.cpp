// Load balancing of experts over ranks that hold parts of one sequence.
#include <gtest/gtest.h>

#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/core/autograd/checkpoint.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/recording_world.h"

namespace d9d::test::balance_test {
namespace {

ModulePtr<MoELayer> layer() {
  return initialized(make_module<MoELayer>(MoELayerConfig{
      .hidden_size = 6, .intermediate_size = 5, .num_experts = 4, .top_k = 2, .auxiliary_loss_coefficient = 0.1}));
}

at::Tensor gate_gradient(const ModulePtr<MoELayer>& moe) { return moe->router->gate->weight->local().grad(); }

TEST(ExpertBalance, Over_parts_of_a_sequence_is_that_of_the_whole) {
  const at::Tensor whole = values({1, 8, 6}, 2);
  const auto expected = layer();
  const at::Tensor expected_loss = *expected(whole).auxiliary_loss;
  expected_loss.backward();
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const auto moe = layer();
    const DeviceMesh ranks = mesh_of(world, "cp");
    moe->set_count_ranks({.of_tokens = ranks, .of_positions = ranks});
    const at::Tensor loss = *moe(part(whole, 1, world)).auxiliary_loss;
    expect_close("loss", loss.detach(), expected_loss.detach(), tolerance("fp64"));
    const double weight = world.rank() == 0 ? 0.0 : 1.0;  // the first rank's positions have no labels
    (loss * weight).backward();
    at::Tensor grad = gate_gradient(moe).clone();
    ranks.communicator()->all_reduce(grad, ReduceOp::kSum).wait();
    expect_close("gradient", grad, gate_gradient(expected), tolerance("fp64"));
  });
}

// One message in forward and one in backward, however often the layer is recomputed.
TEST(ExpertBalance, Communicates_no_more_under_checkpoints_of_any_depth) {
  const at::Tensor whole = values({1, 8, 6}, 2);
  for (const int depth : {0, 1, 2, 3}) {
    run_ranks(RankBackend::kThreads, 2, [&](World& world) {
      std::vector<std::string> operations;
      const auto moe = layer();
      const DeviceMesh ranks("dense", {{"cp", world.size()}}, recording(world, operations));
      moe->set_count_ranks({.of_tokens = ranks, .of_positions = ranks});
      std::function<at::Tensor(const at::Tensor&)> run = [&](const at::Tensor& x) {
        const MoEOutput output = moe(x);
        return output.hidden_states.square().sum() + *output.auxiliary_loss;
      };
      for (int i = 0; i < depth; ++i) {
        run = [inner = run](const at::Tensor& x) { return checkpoint(inner, x.sin()); };
      }
      const at::Tensor loss = run(leaf_part(whole, 1, world));
      EXPECT_EQ(operations, (std::vector<std::string>{"all_reduce"})) << depth;
      loss.backward();
      EXPECT_EQ(operations, (std::vector<std::string>{"all_reduce", "all_reduce"})) << depth;
    });
  }
}

}  // namespace
}  // namespace d9d::test::balance_test
