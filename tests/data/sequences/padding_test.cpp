#include "d9d/data/sequences/padding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/python.h"

namespace d9d::padding_test {
namespace {

using ::testing::HasSubstr;
using Rows = std::vector<std::vector<std::int64_t>>;

at::Tensor row(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

at::Tensor matrix(const Rows& rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& values : rows) tensors.push_back(row(values));
  return at::stack(tensors);
}

Rows rows_of(const at::Tensor& tensor) {
  Rows rows;
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    const at::Tensor line = tensor[i].to(at::kLong).contiguous();
    rows.emplace_back(line.const_data_ptr<std::int64_t>(), line.const_data_ptr<std::int64_t>() + line.numel());
  }
  return rows;
}

Rows padded(const Rows& items, PadOptions options) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : items) tensors.push_back(row(item));
  return rows_of(pad_stack_1d(tensors, options));
}

TEST(PadStack1d, Pads_on_the_right_to_the_longest) {
  EXPECT_EQ(padded({{1, 2, 3}, {4}, {}}, {.pad_value = -100}), (Rows{{1, 2, 3}, {4, -100, -100}, {-100, -100, -100}}));
}

TEST(PadStack1d, Pads_on_the_left) {
  EXPECT_EQ(padded({{1, 2, 3}, {4, 5}}, {.pad_value = 0, .side = PaddingSide::kLeft}), (Rows{{1, 2, 3}, {0, 4, 5}}));
}

TEST(PadStack1d, Leaves_items_of_one_length_alone) {
  EXPECT_EQ(padded({{1, 2}, {3, 4}}, {.pad_value = 9}), (Rows{{1, 2}, {3, 4}}));
}

TEST(PadStack1d, Stacks_a_single_item) { EXPECT_EQ(padded({{7, 8}}, {}), (Rows{{7, 8}})); }

TEST(PadStack1d, Rounds_the_length_up_to_a_multiple) {
  EXPECT_EQ(padded({{1, 2, 3}, {4}}, {.pad_value = 0, .multiple_of = 4}), (Rows{{1, 2, 3, 0}, {4, 0, 0, 0}}));
  EXPECT_EQ(padded({{1, 2, 3}, {4}}, {.pad_value = 0, .side = PaddingSide::kLeft, .multiple_of = 2}),
            (Rows{{0, 1, 2, 3}, {0, 0, 0, 4}}));
}

TEST(PadStack1d, Adds_nothing_to_a_length_that_is_a_multiple) {
  EXPECT_EQ(padded({{1, 2, 3, 4}, {5}}, {.pad_value = 0, .multiple_of = 4}), (Rows{{1, 2, 3, 4}, {5, 0, 0, 0}}));
}

TEST(PadStack1d, Keeps_the_dtype) {
  const at::Tensor stacked = pad_stack_1d({at::ones({2}, at::kDouble), at::ones({1}, at::kDouble)}, {.pad_value = 0.5});
  EXPECT_TRUE(stacked.equal(at::tensor({1.0, 1.0, 1.0, 0.5}, at::kDouble).view({2, 2})));
}

TEST(PadStack1d, Rejects_an_empty_list) {
  try {
    (void)pad_stack_1d({}, {});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Cannot stack 0 items"));
  }
}

TEST(PadStack1d, Rejects_a_multiple_below_one) {
  EXPECT_THROW((void)pad_stack_1d({row({1})}, {.multiple_of = 0}), ConfigError);
  EXPECT_THROW((void)pad_stack_1d({row({1})}, {.multiple_of = -8}), ConfigError);
}

TEST(PadStack1d, Rejects_items_that_do_not_fit_together) {
  EXPECT_THROW((void)pad_stack_1d({row({1}), at::ones({1})}, {}), ConfigError);
  EXPECT_THROW((void)pad_stack_1d({at::ones({2, 2})}, {}), ConfigError);
}

Rows pooled(const Rows& mask, TokenPooling pooling) {
  return rows_of(token_pooling_mask_from_attention_mask(matrix(mask), pooling));
}

TEST(TokenPoolingMask, Marks_the_first_and_the_last_token_of_right_padded_rows) {
  const Rows mask{{1, 1, 1, 0}, {1, 0, 0, 0}, {1, 1, 1, 1}};
  EXPECT_EQ(pooled(mask, TokenPooling::kFirst), (Rows{{1, 0, 0, 0}, {1, 0, 0, 0}, {1, 0, 0, 0}}));
  EXPECT_EQ(pooled(mask, TokenPooling::kLast), (Rows{{0, 0, 1, 0}, {1, 0, 0, 0}, {0, 0, 0, 1}}));
}

TEST(TokenPoolingMask, Marks_the_first_and_the_last_token_of_left_padded_rows) {
  const Rows mask{{0, 1, 1, 1}, {0, 0, 0, 1}};
  EXPECT_EQ(pooled(mask, TokenPooling::kFirst), (Rows{{0, 1, 0, 0}, {0, 0, 0, 1}}));
  EXPECT_EQ(pooled(mask, TokenPooling::kLast), (Rows{{0, 0, 0, 1}, {0, 0, 0, 1}}));
}

TEST(TokenPoolingMask, Marks_the_outer_column_of_a_row_without_tokens) {
  EXPECT_EQ(pooled({{0, 0, 0}}, TokenPooling::kFirst), (Rows{{1, 0, 0}}));
  EXPECT_EQ(pooled({{0, 0, 0}}, TokenPooling::kLast), (Rows{{0, 0, 1}}));
}

TEST(TokenPoolingMask, Gives_int64_for_one_token_and_the_mask_itself_for_all) {
  const at::Tensor mask = at::ones({1, 2}, at::kBool);
  EXPECT_EQ(token_pooling_mask_from_attention_mask(mask, TokenPooling::kLast).scalar_type(), at::kLong);
  EXPECT_TRUE(token_pooling_mask_from_attention_mask(mask, TokenPooling::kAll).is_same(mask));
}

TEST(TokenPoolingMask, Rejects_a_mask_without_rows) {
  EXPECT_THROW((void)token_pooling_mask_from_attention_mask(row({1, 0}), TokenPooling::kLast), ConfigError);
}

// The oracle pads ragged lists by torch.nn.utils.rnn.pad_sequence, and finds pooling masks by loops over the rows in
// Python.
TEST(Padding, Agrees_with_PyTorch) {
  const auto cases = nlohmann::json::parse(test::run_python("tests/data/sequences/padding_oracle.py", {}));
  ASSERT_EQ(cases.size(), 20u);
  for (const auto& expected : cases) {
    const PadOptions options{.pad_value = expected["pad_value"].get<double>(),
                             .side = expected["side"] == "left" ? PaddingSide::kLeft : PaddingSide::kRight};
    EXPECT_EQ(padded(expected["items"], options), expected["padded"].get<Rows>()) << expected;
    EXPECT_EQ(pooled(expected["mask"], TokenPooling::kFirst), expected["first"].get<Rows>()) << expected;
    EXPECT_EQ(pooled(expected["mask"], TokenPooling::kLast), expected["last"].get<Rows>()) << expected;
  }
}

}  // namespace
}  // namespace d9d::padding_test
