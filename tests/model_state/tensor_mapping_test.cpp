#include "d9d/model_state/tensor_mapping.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/support/io_faults.h"

namespace d9d::tensor_mapping_test {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = std::map<std::string, at::Tensor>;

const TensorMapping kSum = {.inputs = {{"a", {2}}, {"b", {2}}},
                            .output = {"sum", {2}},
                            .apply = [](std::span<const at::Tensor> inputs) { return inputs[0] + inputs[1]; }};

TEST(TensorMapping, Makes_outputs_from_named_inputs) {
  const State state = {{"a", at::full({2}, 1)}, {"b", at::full({2}, 2)}, {"c", at::full({3}, 4)}};
  const std::vector<TensorSource> outputs = map_tensors({kSum, rename_tensor("c", "d", {3})}, state);
  ASSERT_EQ(outputs.size(), 2);
  EXPECT_EQ(outputs[0].name, "sum");
  EXPECT_TRUE(at::equal(outputs[0].read(), at::full({2}, 3)));
  EXPECT_EQ(outputs[1].name, "d");
  EXPECT_TRUE(outputs[1].read().is_alias_of(state.at("c")));
}

TEST(TensorMapping, Reads_nothing_before_an_output_is_read) {
  int num_reads = 0;
  const auto find = [&](const std::string& name) -> std::optional<TensorSource> {
    return TensorSource{.name = name, .dtype = at::kFloat, .shape = {2}, .read = [&] {
                          ++num_reads;
                          return at::ones({2});
                        }};
  };
  const std::vector<TensorSource> outputs = map_tensors({kSum, rename_tensor("c", "d", {2})}, find);
  EXPECT_EQ(num_reads, 0);
  (void)outputs[1].read();
  EXPECT_EQ(num_reads, 1);
}

TEST(TensorMapping, Lists_every_missing_name_at_once) {
  EXPECT_THAT(test::message_of<StateError>([] {
                (void)map_tensors({kSum, rename_tensor("c", "d", {3})}, State{{"b", at::ones({2})}});
              }),
              AllOf(HasSubstr("2 missing"), HasSubstr("'a', 'c'")));
}

TEST(TensorMapping, Names_file_tensor_and_both_shapes_when_a_shape_is_wrong) {
  const std::filesystem::path path = test::fresh_directory("d") / "model";
  write_huggingface_directory(path, nlohmann::json::object(), {tensor_source("c", at::ones({4}))});
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(
      test::message_of<StateError>([&] { (void)map_tensors({rename_tensor("c", "d", {3})}, directory); }),
      AllOf(HasSubstr("'c'"), HasSubstr((path / "model.safetensors").string()), HasSubstr("[3]"), HasSubstr("[4]")));
}

TEST(TensorMapping, Refuses_inputs_of_two_dtypes) {
  const State state = {{"a", at::ones({2})}, {"b", at::ones({2}, at::kHalf)}};
  EXPECT_THAT(test::message_of<StateError>([&] { (void)map_tensors({kSum}, state); }),
              AllOf(HasSubstr("'b'"), HasSubstr("Half"), HasSubstr("'sum'")));
}

TEST(TensorMapping, Is_selected_by_its_output) {
  const std::vector<TensorMapping> mappings = {rename_tensor("a", "x", {1}), rename_tensor("b", "y", {1})};
  const std::vector<TensorMapping> selected = select_outputs(mappings, {"y"});
  ASSERT_EQ(selected.size(), 1);
  EXPECT_EQ(selected[0].inputs[0].name, "b");
}

TEST(TensorMapping, Lists_wanted_outputs_that_none_makes) {
  EXPECT_THAT(test::message_of<StateError>([] {
                (void)select_outputs({rename_tensor("a", "x", {1})}, {"x", "y", "z"});
              }),
              HasSubstr("'y', 'z'"));
}

TEST(TensorMapping, Tells_which_names_are_unused) {
  EXPECT_THAT(unused_names({kSum}, {"a", "b", "lm_head.weight"}), ElementsAre("lm_head.weight"));
}

}  // namespace
}  // namespace d9d::tensor_mapping_test
