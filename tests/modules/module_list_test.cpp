#include "d9d/modules/module_list.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace d9d::module_list_test {
namespace {

using ::testing::ElementsAre;

struct Scale : Module {
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const { return x * factor->local(); }
  const ParameterPtr factor = register_parameter("factor", {.shape = {1}, .init = init::uniform(1.0)});
};

struct Scales : Module {
  explicit Scales(std::int64_t first_name) : scales(register_module<ModuleList<Scale>>("scales", first_name)) {
    for (int i = 0; i < 3; ++i) scales->append(make_module<Scale>());
  }
  [[nodiscard]] at::Tensor forward(at::Tensor x) const {
    for (const ModulePtr<Scale>& scale : *scales) x = scale(x);
    return x;
  }
  const ModulePtr<ModuleList<Scale>> scales;
};

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> result;
  for (const auto& [name, parameter] : module.named_parameters()) result.push_back(name);
  return result;
}

TEST(ModuleList, Names_its_children_by_their_numbers) {
  EXPECT_THAT(names(*make_module<Scales>(0)), ElementsAre("scales.0.factor", "scales.1.factor", "scales.2.factor"));
  EXPECT_THAT(names(*make_module<Scales>(9)), ElementsAre("scales.9.factor", "scales.10.factor", "scales.11.factor"));
}

TEST(ModuleList, Has_its_children_in_order) {
  const auto model = make_module<Scales>(0);
  model->materialize(at::kCPU);
  model->reset_parameters(1);
  at::Tensor product = at::ones({1});
  ASSERT_EQ(model->scales->size(), 3);
  for (std::size_t i = 0; i < 3; ++i) product = product * (*model->scales)[i]->factor->local();
  EXPECT_TRUE(at::equal(model(at::ones({1})), product));
  EXPECT_THROW((void)(*model->scales)[3], std::out_of_range);
}

}  // namespace
}  // namespace d9d::module_list_test
