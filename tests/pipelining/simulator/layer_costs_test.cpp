#include "d9d/pipelining/simulator/layer_costs.h"

#include <gtest/gtest.h>

namespace d9d::layer_costs_test {
namespace {

// Whole numbers, so that quotients are exact.
const StageCosts kLayer{.forward = 6,
                        .backward = 18,
                        .backward_input = 12,
                        .backward_weight = 6,
                        .activation_bytes = 24,
                        .deferred_bytes = 36,
                        .resident_bytes = 48};
const StageCosts kHead{.forward = 4,
                       .backward = 9,
                       .backward_input = 8,
                       .backward_weight = 1,
                       .activation_bytes = 5,
                       .deferred_bytes = 0,
                       .resident_bytes = 7};
const StageCosts kEmbedding{.forward = 1,
                            .backward = 2,
                            .backward_input = 0,
                            .backward_weight = 2,
                            .activation_bytes = 0,
                            .deferred_bytes = 3,
                            .resident_bytes = 2};

void expect_equal(const StageCosts& actual, const StageCosts& expected) {
  EXPECT_EQ(actual.forward, expected.forward);
  EXPECT_EQ(actual.backward, expected.backward);
  EXPECT_EQ(actual.backward_input, expected.backward_input);
  EXPECT_EQ(actual.backward_weight, expected.backward_weight);
  EXPECT_EQ(actual.activation_bytes, expected.activation_bytes);
  EXPECT_EQ(actual.deferred_bytes, expected.deferred_bytes);
  EXPECT_EQ(actual.resident_bytes, expected.resident_bytes);
}

TEST(LayerCosts, Finds_layers_and_ends_of_a_model_that_was_measured_in_stages) {
  const ModelCosts model{.pre = kEmbedding, .layers = std::vector(11, kLayer), .post = kHead};
  const LayerDistribution distribution{
      .num_layers = 11, .num_virtual_layers_pre = 1, .num_virtual_layers_post = 0};  // 2, 3, 3, 3 layers
  const auto found = layer_costs({{2, stage_costs(model, 2, 1, 0)}, {4, stage_costs(model, 4, 1, 0)}}, distribution);
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->layers.size(), 11U);
  for (const StageCosts& layer : found->layers) expect_equal(layer, kLayer);
  expect_equal(found->pre, kEmbedding);
  expect_equal(found->post, kHead);
}

TEST(LayerCosts, Says_nothing_of_less_than_three_stages) {
  EXPECT_FALSE(layer_costs({{2, {kLayer, kLayer}}}, {.num_layers = 2}).has_value());
  EXPECT_FALSE(layer_costs({}, {.num_layers = 2}).has_value());
}

}  // namespace
}  // namespace d9d::layer_costs_test
