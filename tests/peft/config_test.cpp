#include "d9d/peft/config.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

namespace d9d::config_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const nlohmann::json kLora = {
    {"kind", "lora"}, {"module_name_pattern", ".*_proj"}, {"params", {{"r", 4}, {"alpha", 8.5}, {"dropout", 0.1}}}};

TEST(PeftConfig, Reads_each_kind_and_nested_stacks_and_writes_them_again) {
  const nlohmann::json tune = {{"kind", "full_tune"}, {"module_name_pattern", "norm"}};
  nlohmann::json dora = kLora;
  dora["kind"] = "dora";
  const nlohmann::json stack = {{"kind", "stack"},
                                {"methods", {kLora, {{"kind", "stack"}, {"methods", {tune}}}, dora}}};
  const PeftConfig config = peft_method_from_config(stack);
  const auto& methods = std::get<StackConfig>(config).methods;
  ASSERT_EQ(methods.size(), 3);
  const auto& lora = std::get<LoraConfig>(methods[0]);
  EXPECT_EQ(lora.module_name_pattern, ".*_proj");
  EXPECT_EQ(lora.params.r, 4);
  EXPECT_EQ(lora.params.alpha, 8.5);
  EXPECT_EQ(lora.params.dropout, 0.1);
  EXPECT_FALSE(lora.params.use_rslora);
  EXPECT_EQ(std::get<FullTuneConfig>(std::get<StackConfig>(methods[1]).methods.at(0)).module_name_pattern, "norm");
  EXPECT_EQ(std::get<DoraConfig>(methods[2]).module_name_pattern, ".*_proj");
  EXPECT_EQ(std::get<DoraConfig>(methods[2]).params.r, 4);
  const auto written = write_record(config);
  EXPECT_EQ(write_record(peft_method_from_config(nlohmann::json::parse(written.dump()))), written);
}

TEST(PeftConfig, Names_the_key_of_a_fault) {
  const auto with = [](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json config = {{"kind", "stack"}, {"methods", {kLora}}};
    config[nlohmann::json::json_pointer("/methods/0" + pointer)] = value;
    return [config] { return peft_method_from_config(config); };
  };
  EXPECT_THAT(with("/params/r", 0), ThrowsMessage<ConfigError>(HasSubstr("methods.0.params.r")));
  EXPECT_THAT(with("/params/dropout", 1), ThrowsMessage<ConfigError>(HasSubstr("methods.0.params.dropout")));
  EXPECT_THAT(with("/module_name_pattern", "("),
              ThrowsMessage<ConfigError>(HasSubstr("methods.0.module_name_pattern: expected a regular expression")));
  EXPECT_THAT(
      [] {
        return peft_method_from_config({{"kind", "stack"}, {"methods", nlohmann::json::array()}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("methods: expected one or more methods")));
  EXPECT_THAT(with("/kind", "vera"), ThrowsMessage<ConfigError>(HasSubstr("methods.0.kind")));
}

TEST(LoraParams, Scale_as_peft_does) {
  EXPECT_EQ((LoraParams{.r = 4, .alpha = 10.0}.scale()), 2.5);
  EXPECT_EQ((LoraParams{.r = 4, .alpha = 10.0, .use_rslora = true}.scale()), 5.0);
}

}  // namespace
}  // namespace d9d::config_test
