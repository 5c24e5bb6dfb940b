#include "d9d/optim/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

namespace d9d::config_test {
namespace {

OptimizerConfig parse(const std::string& text) { return parse_record<OptimizerConfig>(Json::parse(text)); }

TEST(OptimizerConfig, Reads_every_optimiser) {
  const auto adamw = std::get<AdamWConfig>(parse(R"({"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95]})"));
  EXPECT_EQ(adamw.betas, std::pair(0.9, 0.95));
  EXPECT_EQ(adamw.weight_decay, 1e-2);
  EXPECT_TRUE(std::get<AdamConfig>(parse(R"({"name": "adam", "lr": 1, "amsgrad": true})")).amsgrad);
  EXPECT_EQ(std::get<SgdConfig>(parse(R"({"name": "sgd", "lr": 1})")).weight_decay, 0.0);
  EXPECT_EQ(std::get<StochasticAdamWConfig>(parse(R"({"name": "stochastic_adamw", "lr": 1, "state_dtype": "float32"})"))
                .state_dtype,
            Dtype::kFloat32);
  EXPECT_EQ(std::get<LionConfig>(parse(R"({"name": "lion", "lr": 1})")).betas, std::pair(0.9, 0.99));
  const auto muon = std::get<MuonConfig>(parse(R"({"name": "muon", "lr": 0.02, "adjust_lr_fn": "match_rms_adamw",
      "products_dtype": "float32", "adamw": {"lr_factor": 0.5},
      "groups": [{"name": "gates", "parameters": ".*gate.*", "rule": "adamw"}]})"));
  EXPECT_EQ(muon.adjust_lr_fn, AdjustLr::kMatchRmsAdamW);
  EXPECT_EQ(muon.products_dtype, Dtype::kFloat32);
  EXPECT_EQ(muon.adamw.lr_factor, 0.5);
  EXPECT_EQ(muon.groups[0].rule, MuonRule::kAdamW);
}

TEST(OptimizerConfig, Reads_groups_of_parameters) {
  const auto adam = std::get<AdamConfig>(parse(R"({"name": "adam", "lr": 1, "decay_all": false, "groups": [
      {"name": "head", "parameters": "lm_head.*", "lr_factor": 0.1, "weight_decay": 0, "betas": [0.5, 0.6]},
      {"name": "rest", "parameters": ".*"}]})"));
  ASSERT_EQ(adam.groups.size(), 2);
  EXPECT_EQ(adam.groups[0].group.lr_factor, 0.1);
  EXPECT_EQ(adam.groups[0].betas, std::pair(0.5, 0.6));
  EXPECT_EQ(adam.groups[0].group.weight_decay, 0.0);
  EXPECT_EQ(adam.groups[1].group.weight_decay, std::nullopt);
  EXPECT_FALSE(adam.decay_all);
  const auto sgd = std::get<SgdConfig>(parse(R"({"name": "sgd", "lr": 1, "momentum": 0.9, "groups": [
      {"name": "head", "parameters": "lm_head.*", "momentum": 0.5}]})"));
  EXPECT_EQ(sgd.groups[0].momentum, 0.5);
}

TEST(OptimizerConfig, Refuses_groups_that_break_a_rule_and_names_the_place) {
  const auto error = [](const std::string& groups, const std::string& others = R"("name": "adamw", "lr": 1)") {
    try {
      (void)parse("{" + others + R"(, "groups": )" + groups + "}");
    } catch (const ConfigError& thrown) {
      return std::string(thrown.what());
    }
    return std::string();
  };
  using ::testing::AllOf, ::testing::HasSubstr;
  EXPECT_THAT(error(R"([{"name": "a", "parameters": "layers.(0"}])"),
              AllOf(HasSubstr("groups: expected a regular expression"), HasSubstr("'a'"), HasSubstr("layers.(0")));
  EXPECT_THAT(error(R"([{"name": "default", "parameters": ".*"}])"), HasSubstr("Rename the group"));
  EXPECT_THAT(error(R"([{"name": "a/b", "parameters": ".*"}])"), HasSubstr("Rename the group"));
  EXPECT_THAT(error(R"([{"name": "a", "parameters": "x"}, {"name": "a", "parameters": "y"}])"), HasSubstr("'a' twice"));
  EXPECT_THAT(error(R"([{"name": "a", "parameters": ".*", "lr_factor": 0}])"), HasSubstr("lr_factor"));
  EXPECT_THAT(error(R"([{"name": "a", "parameters": ".*", "betas": [0.9, 1]}])"), HasSubstr("betas"));
  EXPECT_THAT(error(R"([{"name": "a", "parameters": ".*", "momentum": 0.9}])"), HasSubstr("momentum"));
  EXPECT_THAT(error(R"([{"name": "a", "parameters": ".*", "momentum": 0.9}])", R"("name": "sgd", "lr": 1)"),
              HasSubstr("expected momentum > 0 with a group that has its own"));
}

TEST(OptimizerConfig, Refuses_what_torch_refuses) {
  for (const char* text :
       {R"({"name": "adamw", "lr": -1})", R"({"name": "adamw", "lr": 1, "betas": [0.9, 1.0]})",
        R"({"name": "adam", "lr": 1, "eps": -1})", R"({"name": "sgd", "lr": 1, "momentum": -0.1})",
        R"({"name": "sgd", "lr": 1, "nesterov": true})", R"({"name": "sgd", "lr": 1, "weight_decay": -1})",
        R"({"name": "stochastic_adamw", "lr": 1})", R"({"name": "muon", "lr": 1, "momentum": 1.0})",
        R"({"name": "muon", "lr": 1, "ns_coefficients": [1, 2]})",
        R"({"name": "muon", "lr": 1, "products_dtype": "float16"})",
        R"({"name": "stochastic_adamw", "lr": 0, "state_dtype": "float32"})"}) {
    EXPECT_THROW(std::ignore = parse(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace d9d::config_test
