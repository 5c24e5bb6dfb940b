// What a config.json of Llama 3 leaves out, and what is refused. Values and gradients: tests/oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/models/llama3/model.h"

#include "tests/support/io_faults.h"

namespace d9d::llama3_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json config(const json& changes = json::object()) {
  json result = json::parse(R"({"model_type": "llama", "hidden_size": 48, "intermediate_size": 64, "vocab_size": 67,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0})");
  result.update(changes);
  return result;
}

Llama3Parameters read(const json& changes) { return kLlama3.parameters_from_huggingface(config(changes)); }

TEST(Llama3, Takes_absent_sizes_of_attention_as_transformers_does) {
  EXPECT_EQ(read(json::object()).layer.head_dim, 12);
  EXPECT_EQ(read({{"head_dim", nullptr}}).layer.head_dim, 12);
  EXPECT_EQ(read({{"head_dim", 6}}).layer.head_dim, 6);
  json without = config();
  without.erase("num_key_value_heads");
  without.erase("rms_norm_eps");
  const Llama3Parameters parameters = kLlama3.parameters_from_huggingface(without);
  EXPECT_EQ(parameters.layer.num_key_value_heads, 4);
  EXPECT_EQ(parameters.layer.rms_norm_eps, 1e-6);
}

TEST(Llama3, Has_no_norms_of_queries_and_keys) {
  const auto model = kLlama3.build(read(json::object()), {});
  for (const auto& [name, parameter] : model->named_parameters()) {
    EXPECT_EQ(name.find("q_norm"), std::string::npos) << name;
    EXPECT_EQ(name.find("bias"), std::string::npos) << name;
  }
}

TEST(Llama3, Is_refused_by_name_where_it_is_another_model) {
  const std::vector<std::pair<std::string, json>> changes = {
      {"attention_bias", true}, {"mlp_bias", true},
      {"hidden_act", "gelu"},   {"attention_dropout", 0.1},
      {"model_type", "qwen3"},  {"quantization_config", {{"bits", 4}}},
      {"hidden_size", "large"}, {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}},
      {"head_dim", 7},          {"num_key_value_heads", 3},
      {"mlp_bias", 3},          {"num_attention_heads", nullptr}};
  for (const auto& [key, value] : changes) {
    EXPECT_THAT(test::message_of<ConfigError>([&, k = key, v = value] {
                  (void)read({{k, v}});
                }),
                AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
}

TEST(Llama3, Of_a_width_that_its_heads_do_not_divide_is_not_exported) {
  Llama3Parameters parameters = read({{"head_dim", 16}});
  EXPECT_NO_THROW((void)kLlama3.huggingface_config(parameters, std::nullopt, Dtype::kFloat32));
  parameters.layer.hidden_size = 50;
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { (void)kLlama3.huggingface_config(parameters, std::nullopt, Dtype::kFloat32); }),
              HasSubstr("hidden_size to be a multiple of num_attention_heads"));
}

}  // namespace
}  // namespace d9d::llama3_test
