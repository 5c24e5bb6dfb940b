#include "d9d/models/legacy_names.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::legacy_names_test {
namespace {

FindTensor find_in(std::map<std::string, at::Tensor> state) {
  return [state = std::move(state)](const std::string& name) -> std::optional<TensorSource> {
    const auto found = state.find(name);
    if (found == state.end()) return std::nullopt;
    return tensor_source(name, found->second);
  };
}

std::vector<TensorMapping> identities(const std::vector<std::string>& names) {
  std::vector<TensorMapping> mappings;
  for (const std::string& name : names) mappings.push_back(rename_tensor(name, name, {1}));
  return mappings;
}

TEST(FormerNames, Of_all_three_heads_load_under_the_present_names) {
  const FindTensor find = accept_legacy_head_names(find_in({{"lm_head.lm_head.regular.weight", at::full({1}, 1)},
                                                            {"cls_head.score.weight", at::full({1}, 2)},
                                                            {"embedding_head.projection.weight", at::full({1}, 3)},
                                                            {"model.norm.weight", at::full({1}, 4)}}));
  const auto tensors = map_tensors(
      identities({"head.lm_head.regular.weight", "head.score.weight", "head.projection.weight", "model.norm.weight"}),
      find);
  for (int index = 0; index < 4; ++index) EXPECT_EQ(tensors[index].read().item<float>(), index + 1);
}

TEST(FormerNames, Give_way_to_present_ones) {
  const FindTensor find = accept_legacy_head_names(
      find_in({{"heads.a.score.weight", at::full({1}, 1)}, {"cls_head.score.weight", at::full({1}, 2)}}), "heads.a.");
  EXPECT_EQ(map_tensors(identities({"heads.a.score.weight"}), find)[0].read().item<float>(), 1);
}

TEST(FormerNames, Do_not_hide_that_a_tensor_is_missing) {
  EXPECT_THAT(test::message_of<StateError>(
                  [] { (void)map_tensors(identities({"head.score.weight"}), accept_legacy_head_names(find_in({}))); }),
              ::testing::HasSubstr("'head.score.weight'"));
}

}  // namespace
}  // namespace d9d::legacy_names_test
