// Converts config.json to this library's parameters and back: what is read, what is written and what is refused.
// qwen3_huggingface_test.cpp tests that transformers agrees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_moe/huggingface.h"

#include "tests/support/io_faults.h"

namespace d9d::qwen3_huggingface_config_test {
namespace {
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// As published with Qwen3-0.6B and Qwen3-30B-A3B.
json dense_config() {
  return json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
}

json moe_config() {
  json config = dense_config();
  config.update(json::parse(R"({
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "num_attention_heads": 32, "num_key_value_heads": 4, "tie_word_embeddings": false})"));
  return config;
}

json with(json config, const std::string& key, const json& value) {
  config[key] = value;
  return config;
}

std::string refusal(const json& config) {
  return test::message_of<ConfigError>([&] {
    if (config.value("model_type", "") == "qwen3_moe") {
      (void)qwen3_moe_parameters_from_huggingface(config);
    } else {
      (void)qwen3_dense_parameters_from_huggingface(config);
    }
  });
}

// As transformers 5 reads them: configuration_qwen3.py, configuration_qwen3_moe.py.
TEST(Qwen3HuggingFaceConfig, Has_windows_only_in_layers_that_have_them) {
  json windows = with(with(dense_config(), "use_sliding_window", true), "sliding_window", 16);
  EXPECT_NO_THROW((void)qwen3_dense_parameters_from_huggingface(windows));  // max_window_layers is num_hidden_layers
  EXPECT_THAT(refusal(with(windows, "max_window_layers", 27)), HasSubstr("use_sliding_window"));
  EXPECT_NO_THROW((void)qwen3_dense_parameters_from_huggingface(
      with(with(windows, "max_window_layers", 27), "sliding_window", nullptr)));
  EXPECT_NO_THROW((void)qwen3_dense_parameters_from_huggingface(
      with(with(windows, "max_window_layers", 27), "layer_types", std::vector<std::string>(28, "full_attention"))));
  json moe = with(with(moe_config(), "use_sliding_window", true), "sliding_window", 16);
  EXPECT_THAT(refusal(moe), HasSubstr("use_sliding_window"));
}

TEST(Qwen3HuggingFaceConfig, Passes_over_how_a_yarn_model_came_to_be) {
  json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const auto parameters = qwen3_dense_parameters_from_huggingface(with(dense_config(), "rope_scaling", yarn));
  yarn["finetuned"] = true;
  EXPECT_EQ(write_record(qwen3_dense_parameters_from_huggingface(with(dense_config(), "rope_scaling", yarn))),
            write_record(parameters));
}

TEST(Qwen3HuggingFaceConfig, Needs_an_epsilon_above_zero) {
  EXPECT_THAT(refusal(with(dense_config(), "rms_norm_eps", 0)), HasSubstr("rms_norm_eps"));
}

TEST(Qwen3HuggingFaceConfig, Is_read_as_published) {
  const Qwen3DenseParameters dense = qwen3_dense_parameters_from_huggingface(dense_config());
  EXPECT_EQ(dense.layer.hidden_size, 1024);
  EXPECT_EQ(dense.layer.intermediate_size, 3072);
  EXPECT_EQ(dense.layer.num_key_value_heads, 8);
  EXPECT_EQ(dense.num_hidden_layers, 28);
  EXPECT_EQ(dense.rope_base, 1000000);
  EXPECT_FALSE(dense.rope_scaling);
  EXPECT_EQ(dense.max_position_ids, 40960);
  EXPECT_EQ(dense.split_vocab_size.at("regular"), 151936);
  EXPECT_TRUE(dense.tie_word_embeddings);
  const Qwen3MoEParameters moe = qwen3_moe_parameters_from_huggingface(moe_config());
  EXPECT_EQ(moe.layer.intermediate_size, 768);
  EXPECT_EQ(moe.layer.num_experts, 128);
  EXPECT_EQ(moe.layer.experts_top_k, 8);
  EXPECT_TRUE(moe.layer.router_renormalize_probabilities);
}

TEST(Qwen3HuggingFaceConfig, Is_written_with_the_published_values) {
  const auto expect_agrees = [](const json& written, const json& published) {
    for (const auto& [key, value] : written.items()) {
      EXPECT_EQ(value, published.value(key, value)) << key;
    }
    for (const char* key : {"architectures", "model_type", "rope_theta", "torch_dtype", "vocab_size"}) {
      EXPECT_TRUE(written.contains(key)) << key;
    }
  };
  const Qwen3DenseParameters dense = qwen3_dense_parameters_from_huggingface(dense_config());
  expect_agrees(qwen3_dense_huggingface_config(dense, CausalLMHeadConfig{}, Dtype::kBFloat16), dense_config());
  const Qwen3MoEParameters moe = qwen3_moe_parameters_from_huggingface(moe_config());
  expect_agrees(qwen3_moe_huggingface_config(moe, CausalLMHeadConfig{}, Dtype::kBFloat16),
                with(moe_config(), "architectures", {"Qwen3MoeForCausalLM"}));
}

TEST(Qwen3HuggingFaceConfig, Adds_up_the_vocabulary_splits) {
  Qwen3DenseParameters dense = qwen3_dense_parameters_from_huggingface(dense_config());
  dense.split_vocab_size = {{"regular", 1000}, {"special", 24}};
  dense.split_vocab_order = {"regular", "special"};
  EXPECT_EQ(qwen3_dense_huggingface_config(dense, std::nullopt, Dtype::kFloat32).at("vocab_size"), 1024);
}

TEST(Qwen3HuggingFaceConfig, Carries_every_rope_scaling_that_both_sides_have) {
  const std::vector<json> scalings = {
      {{"rope_type", "linear"}, {"factor", 2.0}},
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}, {"truncate", true}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 8192}},
      {{"rope_type", "longrope"},
       {"short_factor", std::vector<double>(64, 1.0)},
       {"long_factor", std::vector<double>(64, 2.0)},
       {"original_max_position_embeddings", 4096}}};
  for (const json& scaling : scalings) {
    const auto parameters = qwen3_dense_parameters_from_huggingface(with(dense_config(), "rope_scaling", scaling));
    const json written = qwen3_dense_huggingface_config(parameters, std::nullopt, Dtype::kFloat32);
    for (const auto& [key, value] : scaling.items()) EXPECT_EQ(written["rope_scaling"][key], value) << key;
    json newer = with(dense_config(), "rope_parameters", scaling);
    newer["rope_parameters"]["rope_theta"] = 1e6;
    newer.erase("rope_theta");
    EXPECT_EQ(write_record(qwen3_dense_parameters_from_huggingface(newer)), write_record(parameters));
  }
}

// As in transformers (convert_rope_params_to_dict).
TEST(Qwen3HuggingFaceConfig, Takes_a_rope_scaling_before_rope_parameters_unless_it_is_empty) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}}, plain = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  const auto scaling_of = [](const json& scaling, const json& parameters) {
    json config = with(dense_config(), "rope_scaling", scaling);
    config["rope_parameters"] = parameters;
    return qwen3_dense_parameters_from_huggingface(config).rope_scaling;
  };
  EXPECT_TRUE(scaling_of(yarn, plain).has_value());
  EXPECT_TRUE(scaling_of(yarn, json::object()).has_value());
  EXPECT_TRUE(scaling_of(json::object(), yarn).has_value());
  EXPECT_TRUE(scaling_of(nullptr, yarn).has_value());
  EXPECT_FALSE(scaling_of(json::object(), plain).has_value());
}

TEST(Qwen3HuggingFaceConfig, Needs_a_base_that_is_a_number_of_its_range) {
  for (const json& theta : {json(1e30), json(-5), json(0), json(0.5)}) {
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { (void)qwen3_dense_parameters_from_huggingface(with(dense_config(), "rope_theta", theta)); }),
                HasSubstr("rope_theta"))
        << theta;
  }
}

// As in transformers (standardize_rope_params).
TEST(Qwen3HuggingFaceConfig, Takes_the_original_context_from_beside_the_rope_scaling_first) {
  json config = with(dense_config(), "original_max_position_embeddings", 1024);
  for (const json& inside : {json(), json(64)}) {
    config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", inside}};
    if (inside.is_null()) config["rope_scaling"].erase("original_max_position_embeddings");
    const auto parameters = qwen3_dense_parameters_from_huggingface(config);
    EXPECT_EQ(std::get<YarnRopeScalingConfig>(*parameters.rope_scaling).original_max_position_embeddings, 1024);
  }
}

TEST(Qwen3HuggingFaceConfig, Rounds_yarns_range_unless_told_otherwise_as_transformers_does) {
  const json yarn = {{"type", "yarn"}, {"factor", 4.0}};
  const auto parameters = qwen3_dense_parameters_from_huggingface(with(dense_config(), "rope_scaling", yarn));
  const auto& scaling = std::get<YarnRopeScalingConfig>(*parameters.rope_scaling);
  EXPECT_TRUE(scaling.truncate);
  EXPECT_EQ(scaling.original_max_position_embeddings, 40960);
}

TEST(Qwen3HuggingFaceConfig, Is_refused_by_name_where_we_build_something_else) {
  const std::vector<std::pair<std::string, json>> changes = {
      {"attention_bias", true},       {"attention_dropout", 0.1},
      {"use_sliding_window", true},   {"hidden_act", "gelu"},
      {"partial_rotary_factor", 0.5}, {"quantization_config", {{"bits", 4}}},
      {"model_type", "llama"},        {"layer_types", {"full_attention", "sliding_attention"}},
      {"rope_theta", 10000.5},        {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}},
      {"hidden_size", "large"},       {"num_key_value_heads", nullptr},
      {"num_key_value_heads", 3},     {"head_dim", 7}};
  const json base = with(with(dense_config(), "sliding_window", 16), "max_window_layers", 27);
  EXPECT_NO_THROW((void)qwen3_dense_parameters_from_huggingface(base));
  for (const auto& [key, value] : changes) {
    EXPECT_THAT(refusal(with(base, key, value)), AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
  EXPECT_THAT(refusal(with(moe_config(), "decoder_sparse_step", 0)), HasSubstr("decoder_sparse_step"));
  json without_experts = moe_config();
  without_experts.erase("num_experts");
  EXPECT_THAT(refusal(without_experts), HasSubstr("num_experts"));
}

// As transformers' Qwen3MoeDecoderLayer decides.
TEST(Qwen3HuggingFaceConfig, Names_the_layers_without_experts) {
  using ::testing::ElementsAre;
  const auto dense_layers = [](const json& sparse_step, const json& mlp_only) {
    json config = with(with(moe_config(), "decoder_sparse_step", sparse_step), "mlp_only_layers", mlp_only);
    config["num_hidden_layers"] = 6;
    return qwen3_moe_parameters_from_huggingface(config);
  };
  EXPECT_FALSE(dense_layers(1, json::array()).layer.dense_layers);
  EXPECT_FALSE(dense_layers(1, {6, 7}).layer.dense_layers);  // beyond the last layer
  EXPECT_THAT(dense_layers(1, {3, 0}).layer.dense_layers->indices, ElementsAre(0, 3));
  EXPECT_THAT(dense_layers(2, {1}).layer.dense_layers->indices, ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(dense_layers(2, {1}).layer.dense_layers->intermediate_size, 6144);
  const json written = qwen3_moe_huggingface_config(dense_layers(2, {1}), std::nullopt, Dtype::kFloat32);
  EXPECT_EQ(written.at("mlp_only_layers"), json({0, 1, 2, 4}));
  EXPECT_EQ(written.at("decoder_sparse_step"), 1);
  EXPECT_EQ(written.at("intermediate_size"), 6144);
  EXPECT_EQ(written.at("moe_intermediate_size"), 768);
}

TEST(Qwen3HuggingFaceConfig, Cannot_be_written_for_a_rope_scaling_that_transformers_lacks) {
  Qwen3DenseParameters dense = qwen3_dense_parameters_from_huggingface(dense_config());
  dense.rope_scaling = NtkRopeScalingConfig{.factor = 2.0};
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { (void)qwen3_dense_huggingface_config(dense, std::nullopt, Dtype::kFloat32); }),
              HasSubstr("ntk"));
}

}  // namespace
}  // namespace d9d::qwen3_huggingface_config_test
