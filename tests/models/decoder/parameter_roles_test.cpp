// The roles that blocks say of their parameters, compared with what the names of decoders' parameters mean.
#include <regex>

#include <gtest/gtest.h>

#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/tiny_blocks.h"

namespace d9d::parameter_roles_test {
namespace {

using enum ParameterRole;

// The role by the first expression that a name matches.
ParameterRole role_by_name(const std::string& name) {
  static const std::vector<std::pair<std::regex, ParameterRole>> rules = {
      {std::regex(".*embed_tokens.*"), kEmbedding},
      {std::regex(".*(lm_head|score|projection)\\..*weight"), kHead},
      {std::regex(".*norm.*weight"), kNorm},
      {std::regex(".*(router\\.gate|shared_expert\\.gate)\\.weight"), kRouter},
      {std::regex(".*grouped_experts.*weight"), kGroupedLinear},
      {std::regex(".*_proj\\.weight"), kLinear},
      {std::regex(".*(bias|sinks)"), kVector}};
  for (const auto& [expression, role] : rules) {
    if (std::regex_match(name, expression)) return role;
  }
  return kUnknown;
}

TEST(ParameterRoles, Are_said_of_every_parameter_of_every_family) {
  for (const test::DecoderFamily& family : test::decoder_families()) {
    for (const bool ties : {false, true}) {
      const auto model =
          make_decoder_for_causal_lm(test::make_backbone(family, {}, {.num_layers = 2, .ties_embeddings = ties}));
      for (const auto& [name, parameter] : model->named_parameters()) {
        EXPECT_NE(parameter->role(), kUnknown) << family.name << " " << name;
        EXPECT_EQ(parameter->role(), role_by_name(name)) << family.name << " " << name;
        if (parameter->role() == kGroupedLinear) {
          EXPECT_EQ(parameter->global_shape().size(), 3) << name;
        }
      }
    }
  }
}

TEST(ParameterRoles, Of_a_tied_head_on_a_stage_of_its_own_is_that_of_the_embedding) {
  const test::DecoderFamily& family = test::decoder_families().front();
  const DecoderStageOptions options{.stage = {.num_stages = 2, .current_stage = 1}};
  const auto model =
      make_decoder_for_causal_lm(test::make_backbone(family, options, {.num_layers = 2, .ties_embeddings = true}));
  bool has_embedding = false;
  for (const auto& [name, parameter] : model->named_parameters()) {
    EXPECT_NE(parameter->role(), kHead) << name;
    has_embedding = has_embedding || parameter->role() == kEmbedding;
  }
  EXPECT_TRUE(has_embedding);
}

}  // namespace
}  // namespace d9d::parameter_roles_test
