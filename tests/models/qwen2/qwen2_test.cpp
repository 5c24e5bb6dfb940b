// What is special in a config.json of Qwen2, and what is refused. Values and gradients: tests/oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/models/qwen2/model.h"

#include "tests/support/io_faults.h"

namespace d9d::qwen2_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json config(const json& changes = json::object()) {
  json result = json::parse(R"({"model_type": "qwen2", "hidden_size": 48, "intermediate_size": 64, "vocab_size": 67,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "use_sliding_window": false, "sliding_window": 16,
    "max_window_layers": 1})");
  result.update(changes);
  return result;
}

Qwen2Parameters read(const json& changes) { return kQwen2.parameters_from_huggingface(config(changes)); }

TEST(Qwen2, Has_biases_of_queries_keys_and_values_alone) {
  EXPECT_EQ(read({{"attention_bias", true}}).layer.head_dim, 12);
  const auto model = kQwen2.build(read(json::object()), {});
  std::vector<std::string> biases;
  for (const auto& [name, parameter] : model->named_parameters()) {
    if (name.ends_with("bias") && name.find("layers.1.") != std::string::npos) biases.push_back(name);
  }
  EXPECT_THAT(biases,
              ::testing::UnorderedElementsAre("layers.1.self_attn.q_proj.bias", "layers.1.self_attn.k_proj.bias",
                                              "layers.1.self_attn.v_proj.bias"));
}

TEST(Qwen2, Is_refused_with_layers_that_have_windows) {
  EXPECT_NO_THROW((void)read({{"use_sliding_window", true}, {"max_window_layers", 2}}));
  EXPECT_NO_THROW((void)read({{"use_sliding_window", true}, {"layer_types", {"full_attention", "full_attention"}}}));
  const std::vector<json> refused = {{{"use_sliding_window", true}},
                                     {{"use_sliding_window", true},
                                      {"max_window_layers", 2},
                                      {"layer_types", {"full_attention", "sliding_attention"}}}};
  for (const json& changes : refused) {
    EXPECT_THAT(test::message_of<ConfigError>([&] { (void)read(changes); }), HasSubstr("use_sliding_window"));
  }
}

TEST(Qwen2, Is_refused_by_name_where_it_is_another_model) {
  const std::vector<std::pair<std::string, json>> changes = {{"hidden_act", "gelu"},
                                                             {"attention_dropout", 0.1},
                                                             {"model_type", "qwen2_moe"},
                                                             {"num_key_value_heads", nullptr}};
  for (const auto& [key, value] : changes) {
    EXPECT_THAT(test::message_of<ConfigError>([&, k = key, v = value] {
                  (void)read({{k, v}});
                }),
                AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
}

}  // namespace
}  // namespace d9d::qwen2_test
