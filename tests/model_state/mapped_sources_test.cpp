#include "d9d/model_state/mapped_sources.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

#include "tests/support/io_faults.h"

namespace d9d::mapped_sources_test {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = std::map<std::string, at::Tensor>;

StateMapper sum_and_rename() {
  return mapper::parallel(
      {mapper::function("sum", {"a", "b"}, {"sum"},
                        [](const auto& inputs) { return std::vector<at::Tensor>{inputs[0] + inputs[1]}; }),
       mapper::rename("c", "d")});
}

TEST(MappedSources, Are_the_outputs_in_the_order_of_groups) {
  const State state = {{"a", at::full({2}, 1)}, {"b", at::full({2}, 2)}, {"c", at::full({3}, 4)}};
  const std::vector<TensorSource> outputs = mapped_sources(sum_and_rename(), tensors_of(state));
  ASSERT_EQ(outputs.size(), 2);
  EXPECT_EQ(outputs[0].name, "sum");
  EXPECT_TRUE(at::equal(read_checked(outputs[0]), at::full({2}, 3)));
  EXPECT_EQ(outputs[1].name, "d");
  EXPECT_TRUE(outputs[1].read().is_alias_of(state.at("c")));
}

TEST(MappedSources, Read_nothing_before_they_are_read_and_a_group_once) {
  int num_reads = 0;
  const NamedTensors tensors{.names = {"a", "b"}, .find = [&](const std::string& name) -> std::optional<TensorSource> {
                               return TensorSource{.name = name, .dtype = at::kFloat, .shape = {2}, .read = [&] {
                                                     ++num_reads;
                                                     return at::ones({2});
                                                   }};
                             }};
  const StateMapper both = mapper::function("both", {"a", "b"}, {"x", "y"}, [](const auto& inputs) { return inputs; });
  const std::vector<TensorSource> outputs = mapped_sources(both, tensors);
  EXPECT_EQ(num_reads, 0);
  (void)outputs[0].read();
  (void)outputs[1].read();
  EXPECT_EQ(num_reads, 2);
  (void)outputs[1].read();  // again, after the group was dropped
  EXPECT_EQ(num_reads, 4);
}

TEST(MappedSources, List_every_missing_input_at_once) {
  EXPECT_THAT(test::message_of<StateError>([] {
                (void)mapped_sources(sum_and_rename(), tensors_of(State{{"b", at::ones({2})}}));
              }),
              AllOf(HasSubstr("2 missing"), HasSubstr("'a', 'c'")));
}

TEST(MappedSources, Name_leaf_tensor_and_file_when_a_shape_is_wrong) {
  const std::filesystem::path path = test::fresh_directory("d") / "model";
  write_huggingface_directory(path, nlohmann::json::object(), {tensor_source("c", at::ones({4}))});
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(test::message_of<StateError>([&] {
                (void)mapped_sources(mapper::split("c", {{"x", 1}, {"y", 2}}, 0), tensors_of(directory));
              }),
              AllOf(HasSubstr("in split of 'c'"), HasSubstr("size 3"), HasSubstr("got 4"),
                    HasSubstr((path / "model.safetensors").string())));
}

TEST(MappedSources, Are_grouped_by_what_is_wanted) {
  const NamedTensors tensors = tensors_of(State{{"c", at::ones({3})}});
  const std::vector<SourceGroup> groups = source_groups(sum_and_rename(), tensors, {"d"});
  ASSERT_EQ(groups.size(), 1);
  EXPECT_TRUE(groups[0].inputs.contains("c"));
  EXPECT_THAT(test::message_of<StateError>([&] {
                (void)source_groups(sum_and_rename(), tensors, {"d", "e", "f"});
              }),
              HasSubstr("'e', 'f'"));
  const auto is_sum = [](const std::string& name) { return name == "sum"; };
  EXPECT_EQ(source_groups(sum_and_rename(), tensors, {"d", "sum"}, is_sum).size(), 1);
}

TEST(MappedSources, Leave_names_unused) {
  EXPECT_THAT(unused_names(sum_and_rename(), {"a", "b", "lm_head.weight"}), ElementsAre("lm_head.weight"));
}

}  // namespace
}  // namespace d9d::mapped_sources_test
