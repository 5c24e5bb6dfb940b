#include "d9d/blocks/regularization/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"

#include "tests/support/block_oracle.h"
#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::dropout_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Network : Module {
  explicit Network(double probability)
      : first(register_module<Dropout>("first", probability)),
        linear(register_module<Linear>("linear", LinearConfig{16, 16})),
        second(register_module<Dropout>("second", probability)) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const { return second(at::tanh(linear(first(x)))); }
  const ModulePtr<Dropout> first;
  const ModulePtr<Linear> linear;
  const ModulePtr<Dropout> second;
};

ModulePtr<Network> make_network(double probability = 0.3) {
  return test::initialized(make_module<Network>(probability));
}

at::Tensor mask_of(const ModulePtr<Dropout>& dropout) { return dropout(at::ones({64, 64}, at::kDouble)).ne(0); }

TEST(Dropout, Keeps_its_share_and_scales_it_up) {
  const auto network = make_network();
  const at::Tensor x = test::normal({300, 300}, 1);
  const at::Tensor y = network->first(x);
  const at::Tensor is_kept = y.ne(0);
  EXPECT_NEAR(is_kept.to(at::kDouble).mean().item<double>(), 0.7, 5 * std::sqrt(0.3 * 0.7 / 90000));
  EXPECT_TRUE(at::allclose(y.masked_select(is_kept), x.masked_select(is_kept) / 0.7, 1e-12, 0));
}

TEST(Dropout, Passes_everything_in_evaluation) {
  const auto network = make_network();
  network->eval();
  const at::Tensor x = test::normal({8, 8}, 1);
  EXPECT_TRUE(at::equal(network->first(x), x));
}

TEST(Dropout, Repeats_its_mask_at_the_same_step_and_microbatch) {
  EXPECT_TRUE(at::equal(mask_of(make_network()->first), mask_of(make_network()->first)));
}

TEST(Dropout, Draws_anew_for_each_layer_step_microbatch_and_seed) {
  const auto network = make_network();
  const auto clock = std::make_shared<RandomClock>(RandomClock{.base_seed = 1});
  network->set_random_clock(clock);
  const at::Tensor mask = mask_of(network->first);
  EXPECT_FALSE(at::equal(mask_of(network->second), mask));
  for (const RandomClock& other :
       {RandomClock{.base_seed = 1, .microbatch = {.step = 1}},
        RandomClock{.base_seed = 1, .microbatch = {.number = 1}}, RandomClock{.base_seed = 2}}) {
    *clock = other;
    EXPECT_FALSE(at::equal(mask_of(network->first), mask));
  }
  *clock = {.base_seed = 1};
  EXPECT_TRUE(at::equal(mask_of(network->first), mask));
}

TEST(Dropout, Draws_anew_in_each_call_of_a_microbatch_and_alike_in_another_run) {
  std::vector<std::vector<at::Tensor>> runs;
  for (int run = 0; run < 2; ++run) {
    const auto network = make_network();
    const auto clock = std::make_shared<RandomClock>();
    network->set_random_clock(clock);
    std::vector<at::Tensor> masks;
    for (std::uint64_t number = 0; number < 2; ++number) {
      clock->microbatch = {.number = run == 0 ? number : 1 - number};  // in either order
      for (int call = 0; call < 3; ++call) masks.push_back(mask_of(network->first));
      EXPECT_FALSE(at::equal(mask_of(network->second), masks.back()));
    }
    if (run == 1) std::ranges::rotate(masks, masks.begin() + 3);
    runs.push_back(masks);
  }
  for (std::size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(at::equal(runs[0][i], runs[1][i])) << i;
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(runs[0][i], runs[0][j])) << i << " " << j;
  }
}

// A model that calls one block several times: for two inputs, and twice for the first of them.
struct Siamese : Module {
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const { return block(block(x)) * block(x.cos()); }
  const ModulePtr<Network> block = register_module<Network>("block", /*probability=*/0.3);
};

TEST(Dropout, Has_the_same_masks_in_a_recomputation_although_the_clock_went_on) {
  struct Checkpoints {
    bool of_model, of_block;
  };
  std::vector<test::Tensors> gradients;
  for (const auto& [of_model, of_block] :
       {Checkpoints{false, false}, Checkpoints{true, false}, Checkpoints{false, true}, Checkpoints{true, true}}) {
    const auto model = test::initialized(make_module<Siamese>());
    model->set_activation_checkpointing(of_model);
    model->block->set_activation_checkpointing(of_block);
    const auto clock = std::make_shared<RandomClock>();
    model->set_random_clock(clock);
    const at::Tensor x = test::normal_leaf({8, 16}, 1);
    const at::Tensor y = model(x);
    clock->microbatch = {.number = 5};
    (void)model(x.detach());
    test::backward(y, test::normal({8, 16}, 2));
    EXPECT_EQ(clock->microbatch.num_draws.at("block.first"), 3U) << "a recomputation counts";
    gradients.push_back(test::gradients_of(*model));
    gradients.back().emplace("x", x.grad());
  }
  for (std::size_t i = 1; i < gradients.size(); ++i) {
    for (const auto& [name, gradient] : gradients[0]) EXPECT_TRUE(at::equal(gradient, gradients[i].at(name))) << name;
  }
}

// The part of a tensor that a rank of a mesh holds if `axes` cut its dims one after the other.
struct Cut {
  const char* axis;
  std::int64_t dim;
};

TEST(Dropout, Draws_for_its_part_of_a_tensor_that_ranks_share) {
  const auto mask_of_whole = make_network()->first(at::ones({4, 24, 6}, at::kDouble));
  const std::vector<MeshAxis> axes = {{"cp", 2}, {"tp", 3}};
  for (const std::vector<Cut>& cuts :
       std::vector<std::vector<Cut>>{{{"cp", 1}}, {{"tp", 2}}, {{"cp", 1}, {"tp", 1}}, {{"cp", 1}, {"tp", 2}}}) {
    for (std::int64_t rank = 0; rank < 6; ++rank) {
      const DeviceMesh mesh("batch", axes, test::lone_rank(rank, 6));
      const auto network = make_network();
      at::Tensor expected = mask_of_whole;
      for (const auto& [axis, dim] : cuts) {
        const TensorCut cut{.ranks = PositionCut(mesh.slice({axis})), .dim = dim};
        network->first->add_cut(cut);
        network->first->add_cut(cut);  // added twice, as for a module that is registered in two places
        expected = expected.chunk(mesh.axis_size(axis), dim)[mesh.axis_coordinate(axis)];
      }
      EXPECT_TRUE(at::equal(network->first(at::ones(expected.sizes(), at::kDouble)), expected)) << rank;
    }
  }
}

TEST(Dropout, Draws_for_chunks_of_a_tensor_that_ranks_share) {
  const auto mask_of_whole = make_network()->first(at::ones({4, 24, 6}, at::kDouble));
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const DeviceMesh mesh("batch", {{"cp", 2}, {"tp", 2}}, test::lone_rank(rank, 4));
    const PositionCut chunks(mesh.slice({"cp"}), {{0, 3}, {1, 2}});
    const auto network = make_network();
    network->first->add_cut({.ranks = chunks, .dim = 1});
    network->first->add_cut({.ranks = PositionCut(mesh.slice({"tp"})), .dim = 1});
    const at::Tensor expected = chunks.then(PositionCut(mesh.slice({"tp"}))).part_of(mask_of_whole, 1);
    EXPECT_TRUE(at::equal(network->first(at::ones(expected.sizes(), at::kDouble)), expected)) << rank;
  }
}

TEST(Dropout, Keeps_the_first_cut_over_ranks) {
  const PositionCut ranks(DeviceMesh("batch", {{"tp", 2}}, test::lone_rank(1, 2)).slice({"tp"}));
  const auto whole = make_network()->first(at::ones({4, 6}, at::kDouble));
  const auto network = make_network();
  network->first->add_cut({.ranks = ranks});
  network->first->add_cut({.ranks = ranks, .dim = 1});
  EXPECT_TRUE(at::equal(network->first(at::ones({4, 6}, at::kDouble)), whole));
}

TEST(Dropout, Refuses_ranks_of_a_microbatch_that_it_was_not_told_of) {
  const DeviceMesh mesh("batch", {{"cp", 2}, {"tp", 2}}, test::lone_rank(1, 4));
  const auto network = make_network();
  const auto clock = std::make_shared<RandomClock>(RandomClock{.num_ranks = 4});
  network->set_random_clock(clock);
  const auto message = [&] {
    return test::message_of<ConfigError>([&] { (void)network->second(at::ones({2, 4}, at::kDouble)); });
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("each of the 4 ranks of a microbatch"), HasSubstr("over 1 in second")));
  network->second->add_cut({.ranks = PositionCut(mesh.slice({"cp"})), .dim = 1});
  EXPECT_THAT(message(), HasSubstr("over 2 in second"));
  network->second->add_cut({.ranks = PositionCut(mesh.slice({"tp"}))});  // ranks that hold the same values
  EXPECT_NO_THROW((void)network->second(at::ones({2, 4}, at::kDouble)));
  EXPECT_THROW((void)network->second(at::ones({2}, at::kDouble)), ConfigError);
  network->eval();
  EXPECT_NO_THROW((void)network(at::ones({2, 16}, at::kDouble)));
}

TEST(Dropout, Refuses_a_graph_that_would_keep_its_mask) {
  const auto network = make_network();
  const auto clock = std::make_shared<RandomClock>(RandomClock{.is_captured = true});
  network->set_random_clock(clock);
  EXPECT_THROW((void)network->first(at::ones({2, 2})), ConfigError);
  network->eval();
  EXPECT_NO_THROW((void)network->first(at::ones({2, 2})));
}

TEST(Dropout, Refuses_to_drop_everything) { EXPECT_THROW((void)make_module<Dropout>(1.0), ConfigError); }

}  // namespace
}  // namespace d9d::dropout_test
