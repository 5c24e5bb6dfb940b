#include "d9d/optim/config.h"

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
}

TEST(OptimizerConfig, Refuses_what_torch_refuses) {
  for (const char* text :
       {R"({"name": "adamw", "lr": -1})", R"({"name": "adamw", "lr": 1, "betas": [0.9, 1.0]})",
        R"({"name": "adam", "lr": 1, "eps": -1})", R"({"name": "sgd", "lr": 1, "momentum": -0.1})",
        R"({"name": "sgd", "lr": 1, "nesterov": true})", R"({"name": "sgd", "lr": 1, "weight_decay": -1})",
        R"({"name": "stochastic_adamw", "lr": 1})",
        R"({"name": "stochastic_adamw", "lr": 0, "state_dtype": "float32"})"}) {
    EXPECT_THROW(std::ignore = parse(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace d9d::config_test
