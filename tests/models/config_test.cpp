#include "d9d/models/qwen3_moe/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

namespace d9d::config_test {
namespace {

using ::testing::HasSubstr;

Json model() {
  return Json::parse(R"({
    "layer": {"hidden_size": 768, "intermediate_size": 576, "num_experts": 128, "experts_top_k": 8,
              "num_attention_heads": 16, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "head_dim": 128},
    "num_hidden_layers": 16, "rope_base": 1000000.0, "max_position_ids": 128000,
    "split_vocab_size": {"regular": 151643, "special": 26}, "split_vocab_order": ["regular", "special"]
  })");
}

std::string error_with(const std::string& pointer, const char* value) {
  Json json = model();
  json[Json::json_pointer(pointer)] = Json::parse(value);
  try {
    std::ignore = parse_record<Qwen3MoEParameters>(json, {.keys = "model"});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Qwen3MoEParameters, Have_the_documented_defaults) {
  const auto parameters = parse_record<Qwen3MoEParameters>(model());
  EXPECT_EQ(parameters.rope_base, 1000000);
  EXPECT_EQ(parameters.pipeline_num_virtual_layers_pre, 0);
  EXPECT_EQ(parameters.pipeline_num_virtual_layers_post, 0);
  EXPECT_FALSE(parameters.tie_word_embeddings);
  EXPECT_FALSE(parameters.rope_scaling.has_value());
  EXPECT_TRUE(parameters.layer.router_renormalize_probabilities);
  EXPECT_FALSE(parameters.layer.sdpa_backend.has_value());
  EXPECT_FALSE(parameters.layer.grouped_mm_backend.has_value());
}

TEST(Qwen3MoEParameters, Read_backends_and_rope_scaling) {
  EXPECT_EQ(error_with("/layer/sdpa_backend", R"({"kind": "torch", "backends": ["MATH", "FLASH_ATTENTION"]})"),
            "accepted");
  EXPECT_EQ(error_with("/layer/grouped_mm_backend", R"({"kind": "cutlass"})"), "accepted");
  EXPECT_EQ(error_with("/rope_scaling", R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768})"),
            "accepted");
}

TEST(Qwen3MoEParameters, Refuse_sizes_that_do_not_fit_together) {
  EXPECT_EQ(error_with("/layer/num_key_value_heads", "3"),
            "[config] model.layer: expected num_attention_heads to be divisible by num_key_value_heads = 3, got "
            "num_attention_heads = 16. Change one of the two.");
  EXPECT_EQ(error_with("/layer/experts_top_k", "129"),
            "[config] model.layer: expected experts_top_k <= num_experts = 128, got experts_top_k = 129. Change one of "
            "the two.");
  EXPECT_THAT(error_with("/layer/head_dim", "63"), HasSubstr("model.layer: expected an even head_dim, got 63"));
  EXPECT_THAT(error_with("/layer/hidden_size", "0"), HasSubstr("model.layer.hidden_size: expected a number >= 1"));
}

TEST(Qwen3MoEParameters, Refuse_an_order_that_does_not_name_every_vocabulary_part_once) {
  EXPECT_THAT(error_with("/split_vocab_order", R"(["regular"])"), HasSubstr("got none of 'special'"));
  EXPECT_THAT(error_with("/split_vocab_order", R"(["regular", "special", "regular"])"),
              HasSubstr("got 'regular' twice"));
  EXPECT_THAT(error_with("/split_vocab_order", R"(["regular", "added"])"),
              HasSubstr("expected names out of split_vocab_size, got 'added'"));
  EXPECT_THAT(error_with("/split_vocab_size", "{}"), HasSubstr("expected at least one part"));
  EXPECT_THAT(error_with("/split_vocab_size/special", "0"), HasSubstr("model.split_vocab_size.special: expected"));
}

TEST(Qwen3MoEParameters, Refuse_dense_layers_that_the_model_does_not_have) {
  const auto error = [](const std::string& indices) {
    return error_with("/layer/dense_layers", (R"({"intermediate_size": 8, "indices": )" + indices + "}").c_str());
  };
  EXPECT_THAT(error("[0, 16]"),
              HasSubstr("model.layer.dense_layers.indices: expected ascending indices of layers below "
                        "num_hidden_layers = 16, got [0,16]"));
  EXPECT_THAT(error("[1, 1]"), HasSubstr("got [1,1]. Each layer has its index once."));
  EXPECT_THAT(error("[]"), HasSubstr("expected the index of a layer, got none. Leave dense_layers out"));
  EXPECT_THAT(error("[-1]"), HasSubstr("model.layer.dense_layers.indices"));
  EXPECT_THAT(error_with("/layer/dense_layers", R"({"indices": [0]})"), HasSubstr("intermediate_size"));
}

TEST(Qwen3MoEParameters, Refuse_rope_scaling_that_makes_no_curve) {
  EXPECT_THAT(error_with("/rope_scaling",
                         R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 1, "beta_fast": 1})"),
              HasSubstr("model.rope_scaling: expected beta_fast > beta_slow = 1, got beta_fast = 1"));
  EXPECT_THAT(error_with("/rope_scaling", R"({"type": "llama3", "factor": 4, "original_max_position_embeddings": 1,
                                              "low_freq_factor": 4, "high_freq_factor": 4})"),
              HasSubstr("expected low_freq_factor < high_freq_factor = 4"));
  EXPECT_THAT(error_with("/rope_scaling", R"({"type": "longrope", "original_max_position_embeddings": 1,
                                              "short_factor": [1], "long_factor": [1, 2]})"),
              HasSubstr("expected head_dim / 2 = 64 values in short_factor and in long_factor, got 1 and 2"));
  EXPECT_THAT(error_with("/rope_scaling", R"({"type": "dynamic"})"),
              HasSubstr("model.rope_scaling.type: expected one"));
}

}  // namespace
}  // namespace d9d::config_test
