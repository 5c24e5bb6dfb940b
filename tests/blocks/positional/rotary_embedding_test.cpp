#include "d9d/blocks/positional/rotary_embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/config/record_json.h"
#include "d9d/blocks/positional/rope_tables.h"
#include "d9d/models/qwen3_dense/model.h"

#include "tests/support/block_oracle.h"
#include "tests/support/io_faults.h"

namespace d9d::rotary_embedding_test {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

ModulePtr<RotaryEmbeddingProvider> rope(RotaryEmbeddingConfig config, at::ScalarType dtype) {
  config.head_dim = 8;
  config.max_position_ids = 32;
  auto provider = make_module<RotaryEmbeddingProvider>(config);
  test::load(*provider, {}, dtype);
  return provider;
}

const at::Tensor kPositions = at::arange(10).reshape({2, 5});

TEST(RotaryEmbedding, Gives_the_tables_of_transformers) {
  const RotaryTables tables = rope({}, at::kDouble)(test::oracle_tensor("rotary_half/positions"));
  EXPECT_TRUE(at::equal(tables.cos, test::oracle_tensor("rotary_half/cos")));
  EXPECT_TRUE(at::equal(tables.sin, test::oracle_tensor("rotary_half/sin")));
}

TEST(RotaryEmbedding, Has_the_same_angles_in_the_interleaved_style_in_pairs) {
  const RotaryTables half = rope({}, at::kFloat)(kPositions);
  const RotaryTables interleaved = rope({.style = RotaryStyle::kInterleaved}, at::kFloat)(kPositions);
  EXPECT_TRUE(at::equal(interleaved.cos, half.cos.slice(-1, 0, 4).repeat_interleave(2, -1)));
  EXPECT_TRUE(at::equal(interleaved.sin, half.sin.slice(-1, 0, 4).repeat_interleave(2, -1)));
}

TEST(RotaryEmbedding, Refuses_positions_beyond_its_tables) {
  const auto provider = rope({}, at::kFloat);
  EXPECT_NO_THROW((void)provider(at::full({1, 1}, 31, at::kLong)));
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)provider(at::full({1, 1}, 32, at::kLong));
              }),
              AllOf(HasSubstr("max_position_ids = 32"), HasSubstr("to 32")));
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)provider(at::full({1, 1}, -1, at::kLong));
              }),
              HasSubstr("from -1"));
}

TEST(RotaryEmbedding, Has_no_part_in_the_state_dict) { EXPECT_TRUE(rope({}, at::kFloat)->state_dict().empty()); }

TEST(RotaryEmbedding, Follows_the_dtype_of_the_model_by_rounding_its_float32_tables) {
  const RotaryTables wide = rope({}, at::kFloat)(kPositions);
  const RotaryTables narrow = rope({}, at::kBFloat16)(kPositions);
  EXPECT_EQ(narrow.cos.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(narrow.cos, wide.cos.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(narrow.sin, wide.sin.to(at::kBFloat16)));
}

TEST(RotaryEmbedding, Keeps_float32_in_a_narrower_model_if_asked_to) {
  const RotaryTables tables = rope({.keeps_float32 = true}, at::kBFloat16)(kPositions);
  EXPECT_EQ(tables.cos.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(tables.cos, rope({}, at::kFloat)(kPositions).cos));
}

TEST(RotaryEmbedding, Is_stretched_in_a_model_whose_json_asks_for_it) {
  const auto parameters = parse_record<Qwen3DenseParameters>(parse_json_text(
      R"({"layer": {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "rms_norm_eps": 1e-6, "head_dim": 8},
          "num_hidden_layers": 1, "rope_base": 10000, "max_position_ids": 64,
          "split_vocab_size": {"regular": 8}, "split_vocab_order": ["regular"],
          "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}})",
      "test"));
  auto model = make_module<Qwen3DenseModel>(parameters, DecoderStageOptions{});
  model->to(at::kFloat);
  model->materialize(at::kCPU);
  model->reset_parameters(1);
  const at::Tensor positions = at::arange(64).unsqueeze(0);
  const RopeFrequencies frequencies =
      rope_frequencies({.head_dim = 8,
                        .max_position_ids = 64,
                        .scaling = YarnRopeScalingConfig{.factor = 4.0, .original_max_position_embeddings = 16}});
  const at::Tensor cos = model->rope_provider(positions).cos.squeeze(0);
  EXPECT_TRUE(at::equal(cos, rope_table(RopeTable::kCos, frequencies, 64, RotaryStyle::kHalf)));
  const RopeFrequencies plain = rope_frequencies({.head_dim = 8, .max_position_ids = 64});
  EXPECT_FALSE(at::equal(cos, rope_table(RopeTable::kCos, plain, 64, RotaryStyle::kHalf)));
}

}  // namespace
}  // namespace d9d::rotary_embedding_test
