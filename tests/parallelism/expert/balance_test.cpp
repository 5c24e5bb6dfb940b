// The balance of experts over ranks that hold parts of one sequence.
#include <gtest/gtest.h>

#include "d9d/modules/blocks/moe/moe_layer.h"

#include "tests/parallelism/one_rank.h"

namespace d9d::test {
namespace {

ModulePtr<MoELayer> layer() {
  return initialized(make_module<MoELayer>(MoELayerConfig{
      .hidden_size = 6, .intermediate_size = 5, .num_experts = 4, .top_k = 2, .auxiliary_loss_coefficient = 0.1}));
}

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
    loss.backward();
    at::Tensor mean = loss.detach() / 2;  // the parts are equally long
    at::Tensor grad = moe->router->gate->weight->local().grad() / 2;
    ranks.communicator()->all_reduce(mean, ReduceOp::kSum).wait();
    ranks.communicator()->all_reduce(grad, ReduceOp::kSum).wait();
    expect_close("loss", mean, expected_loss.detach(), tolerance("fp64"));
    expect_close("gradient", grad, expected->router->gate->weight->local().grad(), tolerance("fp64"));
  });
}

}  // namespace
}  // namespace d9d::test
