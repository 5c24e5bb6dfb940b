#include "d9d/optim/parameter_groups.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::parameter_groups_test {
namespace {

using ::testing::ElementsAre;

NamedParameter parameter(const std::string& name, ParameterRole role, const std::vector<std::int64_t>& shape = {2, 2}) {
  return {.name = name, .tensor = at::ones({4}), .global_shape = shape, .role = role};
}

TEST(ParameterGroups, The_first_that_matches_the_whole_name_decides) {
  const ParameterGroups groups(
      AdamWConfig{.groups = {{.group = {.name = "first", .parameters = "layers\\.0\\..*", .lr_factor = 0.5}},
                             {.group = {.name = "all", .parameters = ".*layers.*"}}}});
  EXPECT_THAT(groups.names(), ElementsAre("first", "all", "default"));
  EXPECT_EQ(groups.index_of("layers.0.weight"), 0);
  EXPECT_EQ(groups.index_of("layers.00.weight"), 1);
  EXPECT_EQ(groups.index_of("model.layers.0.weight"), 1);
  EXPECT_EQ(groups.index_of("norm.weight"), 2);
  EXPECT_THAT(groups.rate_factors(),
              ElementsAre(std::pair("all", 1.0), std::pair("default", 1.0), std::pair("first", 0.5)));
}

TEST(ParameterGroups, Have_the_options_of_the_optimiser_unless_they_have_their_own) {
  const ParameterGroups groups(
      AdamWConfig{.betas = {0.8, 0.9},
                  .weight_decay = 0.3,
                  .groups = {{.group = {.name = "a", .parameters = "a", .lr_factor = 2.0, .weight_decay = 0.0}},
                             {.group = {.name = "b", .parameters = "b"}, .betas = std::pair(0.1, 0.2)}}});
  const auto options = [&](const char* name) { return groups.options_of(parameter(name, ParameterRole::kLinear)); };
  EXPECT_EQ(options("a"), (ParameterOptions{.lr_factor = 2.0, .weight_decay = 0.0, .betas = {0.8, 0.9}}));
  EXPECT_EQ(options("b"), (ParameterOptions{.weight_decay = 0.3, .betas = {0.1, 0.2}}));
  EXPECT_EQ(options("c"), (ParameterOptions{.weight_decay = 0.3, .betas = {0.8, 0.9}}));
}

TEST(ParameterGroups, Spare_norms_biases_vectors_and_embeddings_by_their_role) {
  const ParameterGroups groups(
      SgdConfig{.weight_decay = 0.3,
                .groups = {{.group = {.name = "own", .parameters = "own.*", .weight_decay = 0.2}}},
                .decay_all = false});
  const auto decay = [&](const std::string& name, ParameterRole role, const std::vector<std::int64_t>& shape = {2, 2}) {
    return groups.options_of(parameter(name, role, shape)).weight_decay;
  };
  using enum ParameterRole;
  for (const ParameterRole role : {kNorm, kVector, kEmbedding}) {
    EXPECT_EQ(decay("weight", role), 0.0);
    EXPECT_EQ(decay("own.weight", role), 0.2);
  }
  for (const ParameterRole role : {kLinear, kGroupedLinear, kHead, kRouter}) EXPECT_EQ(decay("norm.bias", role), 0.3);
  EXPECT_EQ(decay("unknown", kUnknown, {2, 2}), 0.3);
  EXPECT_EQ(decay("unknown", kUnknown, {4}), 0.0);
}

TEST(ParameterGroups, Spare_nothing_unless_asked) {
  const ParameterGroups groups(SgdConfig{.weight_decay = 0.3});
  EXPECT_EQ(groups.options_of(parameter("norm", ParameterRole::kNorm)).weight_decay, 0.3);
  EXPECT_TRUE(groups.rate_factors().empty());
}

TEST(ParameterGroups, Refuse_numbers_out_of_range) {
  EXPECT_THROW(ParameterGroups(AdamWConfig{.weight_decay = -1}), ConfigError);
  EXPECT_THROW(ParameterGroups(AdamWConfig{.betas = {1.0, 0.9}}), ConfigError);
  EXPECT_THROW(ParameterGroups(SgdConfig{.momentum = -1}), ConfigError);
  EXPECT_THROW(ParameterGroups(
                   AdamWConfig{.groups = {{.group = {.name = "a", .parameters = "a"}, .betas = std::pair(0.1, 1.0)}}}),
               ConfigError);
  EXPECT_THROW(ParameterGroups(AdamWConfig{.groups = {{.group = {.name = "a", .parameters = "a", .lr_factor = 0}}}}),
               ConfigError);
}

}  // namespace
}  // namespace d9d::parameter_groups_test
