#include "d9d/blocks/positional/rope_tables.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/python.h"

namespace d9d::rope_tables_test {
namespace {

using kernels::RotaryStyle;

constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kBase = 150000;

RopeFrequencies frequencies_of(std::optional<RopeScalingConfig> scaling, std::int64_t head_dim = kHeadDim) {
  return rope_frequencies(
      {.base = kBase, .head_dim = head_dim, .max_position_ids = 1024, .scaling = std::move(scaling)});
}

YarnRopeScalingConfig yarn() {
  return {.factor = 32, .original_max_position_embeddings = 4096, .beta_fast = 32, .beta_slow = 1};
}

LongRopeScalingConfig longrope(std::int64_t original_max_position_embeddings) {
  LongRopeScalingConfig config{.original_max_position_embeddings = original_max_position_embeddings};
  for (int i = 0; i < 32; ++i) {
    config.short_factor.push_back(1.0 + 0.01 * i);
    config.long_factor.push_back(1.0 + 0.7 * i);
  }
  return config;
}

// The cases of rope_tables_oracle.py.
std::map<std::string, std::optional<RopeScalingConfig>> oracle_cases() {
  auto truncated = yarn(), mscale = yarn(), attention_factor = yarn(), without_ramp = yarn(), beyond = yarn();
  truncated.truncate = true;
  truncated.beta_fast = 16;
  truncated.beta_slow = 2;
  mscale.mscale = 0.707;
  mscale.mscale_all_dim = 1.1;
  attention_factor.attention_factor = 1.25;
  without_ramp.truncate = true;
  without_ramp.original_max_position_embeddings = 5;
  without_ramp.beta_fast = 1;
  without_ramp.beta_slow = 0.99;
  beyond.original_max_position_embeddings = 10'000'000;
  return {{"none", std::nullopt},
          {"linear", LinearRopeScalingConfig{.factor = 4}},
          {"ntk", NtkRopeScalingConfig{.factor = 4}},
          {"yarn", yarn()},
          {"yarn_truncated", truncated},
          {"yarn_mscale", mscale},
          {"yarn_attention_factor", attention_factor},
          {"yarn_without_ramp", without_ramp},
          {"yarn_beyond_the_last_dim", beyond},
          {"llama3", Llama3RopeScalingConfig{.factor = 8, .original_max_position_embeddings = 512}},
          {"longrope_short", longrope(1024)},
          {"longrope_long", longrope(256)}};
}

at::Tensor rows_of(const nlohmann::json& rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(at::tensor(row.get<std::vector<double>>(), at::kDouble));
  return at::stack(tensors);
}

TEST(RopeTables, Equal_those_of_transformers_bit_for_bit) {
  const auto oracle = nlohmann::json::parse(test::run_python("tests/blocks/positional/rope_tables_oracle.py", {}));
  const auto positions = at::tensor(oracle["rows"].get<std::vector<std::int64_t>>(), at::kLong);
  ASSERT_EQ(oracle["cases"].size(), oracle_cases().size());
  for (const auto& [name, scaling] : oracle_cases()) {
    const auto& expected = oracle["cases"][name];
    const auto frequencies = frequencies_of(scaling);
    const auto table = [&](RopeTable which) {
      return rope_table(which, frequencies, 1024, RotaryStyle::kHalf).index_select(0, positions).to(at::kDouble);
    };
    EXPECT_TRUE(at::equal(frequencies.inverse.to(at::kDouble),
                          at::tensor(expected["inverse"].get<std::vector<double>>(), at::kDouble)))
        << name;
    EXPECT_DOUBLE_EQ(frequencies.attention_scale, expected["scale"].get<double>()) << name;
    EXPECT_TRUE(at::equal(table(RopeTable::kCos), rows_of(expected["cos"]))) << name;
    EXPECT_TRUE(at::equal(table(RopeTable::kSin), rows_of(expected["sin"]))) << name;
  }
}

TEST(RopeTables, Have_the_golden_yarn_frequencies) {
  const auto frequencies = frequencies_of(yarn());
  EXPECT_NEAR(frequencies.attention_scale, 1.34657359, 1e-8);
  const std::map<std::int64_t, double> golden = {{0, 1.0},
                                                 {7, 0.0737445682},
                                                 {8, 0.0508132748},
                                                 {9, 0.0317056962},
                                                 {12, 0.00679495949},
                                                 {16, 4.56483919e-4},
                                                 {17, 1.29318701e-4},
                                                 {18, 3.83088124e-5},
                                                 {31, 3.02351143e-7}};
  for (const auto& [index, value] : golden)
    EXPECT_NEAR(frequencies.inverse[index].item<double>() / value, 1, 2e-6) << index;
}

TEST(RopeTables, Have_the_golden_ntk_frequencies) {
  const auto inverse = frequencies_of(NtkRopeScalingConfig{.factor = 4}).inverse;
  EXPECT_NEAR(inverse[1].item<double>(), 0.658909635, 1e-7);
  EXPECT_NEAR(inverse[2].item<double>(), 0.434161907, 1e-7);
}

TEST(RopeTables, Lay_angles_out_in_halves_or_interleaved) {
  const auto frequencies = frequencies_of(std::nullopt, 4);
  const at::Tensor cos = rope_table(RopeTable::kCos, frequencies, 3, RotaryStyle::kHalf);
  const at::Tensor half = rope_table(RopeTable::kSin, frequencies, 3, RotaryStyle::kHalf);
  const at::Tensor interleaved = rope_table(RopeTable::kSin, frequencies, 3, RotaryStyle::kInterleaved);
  const auto interleave = at::tensor({0, 2, 1, 3}, at::kLong);
  EXPECT_TRUE(at::equal(half.index_select(1, interleave), interleaved));
  EXPECT_TRUE(at::equal(half.narrow(1, 0, 2), half.narrow(1, 2, 2)));
  EXPECT_FLOAT_EQ(cos[2][1].item<float>(), std::cos(2.0F / std::sqrt(static_cast<float>(kBase))));
  EXPECT_TRUE(at::equal(cos[0], at::ones({4})));
}

TEST(RopeTables, Are_rounded_to_the_dtype_at_the_end) {
  const auto frequencies = frequencies_of(yarn());
  const auto table = [&](at::ScalarType dtype) {
    return rope_table(RopeTable::kSin, frequencies, 1024, RotaryStyle::kInterleaved, dtype);
  };
  EXPECT_TRUE(at::equal(table(at::kBFloat16), table(at::kFloat).to(at::kBFloat16)));
}

// In float32 an angle of up to 2^20 is a multiple of 2^-4, and a cosine changes no faster than its angle. A position or
// a frequency in a narrower dtype would be wrong by radians.
TEST(RopeTables, Of_a_million_positions_err_by_the_rounding_of_angles) {
  constexpr std::int64_t kPositions = 1 << 20, kLast = 4096, kWidth = 16;
  const RopeFrequencies frequencies =
      rope_frequencies({.base = 1'000'000, .head_dim = kWidth, .max_position_ids = kPositions});
  const at::Tensor cosines = rope_table(RopeTable::kCos, frequencies, kPositions, kernels::RotaryStyle::kHalf)
                                 .narrow(0, kPositions - kLast, kLast)
                                 .narrow(1, 0, kWidth / 2);
  const at::Tensor angles = at::arange(kPositions - kLast, kPositions, at::kDouble).unsqueeze(1) *
                            frequencies.inverse.to(at::kDouble).unsqueeze(0);
  const double error = (cosines.to(at::kDouble) - angles.cos()).abs().max().item<double>();
  EXPECT_LE(error, 0x1p-5 + 0x1p-23);
  EXPECT_GE(error, 0x1p-8);  // the measurement works
}

TEST(RopeTables, Stay_finite_when_the_yarn_ramp_has_no_width) {
  EXPECT_TRUE(frequencies_of(oracle_cases().at("yarn_without_ramp")).inverse.isfinite().all().item<bool>());
}

TEST(RopeTables, Reject_odd_heads_ntk_without_dims_and_factor_lists_of_another_length) {
  EXPECT_THROW((void)frequencies_of(std::nullopt, 5), ConfigError);
  EXPECT_THROW((void)frequencies_of(NtkRopeScalingConfig{.factor = 4}, 2), ConfigError);
  EXPECT_THROW((void)frequencies_of(longrope(1024), 32), ConfigError);
}

}  // namespace
}  // namespace d9d::rope_tables_test
