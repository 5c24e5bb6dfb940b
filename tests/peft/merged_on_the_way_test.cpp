#include "d9d/peft/merged_on_the_way.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "d9d/base/check.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/modules/adopt.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/merge.h"

#include "tests/peft/toy_model.h"

namespace d9d::merged_on_the_way_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ModulePtr<test::ToyModel> adapted_model(at::ScalarType dtype) {
  auto model = make_module<test::ToyModel>();
  (void)inject_peft(LoraConfig{.module_name_pattern = "proj|experts", .params = {.r = 2, .alpha = 3.0}}, *model);
  test::fill(*model, dtype);
  return model;
}

std::map<std::string, at::Tensor> exported(const test::ToyModel& model, const StateMapper& plain,
                                           const std::optional<at::ScalarType>& dtype = {}) {
  std::map<std::string, at::Tensor> tensors;
  const StateMapper mapper = merged_on_the_way(adapters_of(model), plain, dtype);
  for (const TensorSource& source : mapped_sources(mapper, tensors_of(model.state_dict()))) {
    tensors.emplace(source.name, source.read().clone());
  }
  return tensors;
}

const StateMapper kOwnNames = mapper::identities_of_module(*make_module<test::ToyModel>());

TEST(AdaptersOf, Describes_them) {
  const auto model = adapted_model(at::kFloat);
  const std::vector<AdaptedModule> modules = adapters_of(*model).modules;
  ASSERT_EQ(modules.size(), 2);
  EXPECT_EQ(modules[0].name, "proj");
  EXPECT_EQ(modules[0].weights.at(0).stored, "proj.weight");
  EXPECT_THAT(modules[0].weights.at(0).shape, ElementsAre(20, 10));
  EXPECT_THAT(modules[0].a, ElementsAre("proj.lora_A.weight"));
  EXPECT_EQ(modules[0].rank, 2);
  EXPECT_EQ(modules[0].scale, 1.5);
  EXPECT_THAT(modules[1].weights.at(0).shape, ElementsAre(3, 6, 5));
  EXPECT_EQ(modules[1].rank, 2);
}

TEST(MergedOnTheWay, Makes_the_tensors_of_a_model_merged_in_memory) {
  for (const auto dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto model = adapted_model(dtype);
    const auto made = exported(*model, kOwnNames);
    (void)merge_peft(*model);
    const auto merged = model->state_dict();
    ASSERT_EQ(made.size(), merged.size());
    for (const auto& [name, tensor] : merged) EXPECT_TRUE(at::equal(made.at(name), tensor)) << name;
  }
}

TEST(MergedOnTheWay, Merges_an_adopted_linear_and_those_of_stages_without_names) {
  struct Net : Module {
    const ModulePtr<Adopted<torch::nn::LinearImpl>> adopted =
        register_module("adopted", adopt([] { return torch::nn::Linear(4, 6); }));
    const ModulePtr<Linear> proj = register_module<Linear>("proj", LinearConfig{6, 4});
  };
  struct Stages : Module {
    explicit Stages(const std::shared_ptr<Module>& stage) { register_unnamed(stage); }
  };
  const auto net = make_module<Net>();
  const std::set<std::string> plain = mapper::identities_of_module(*net).outputs();
  (void)inject_peft(LoraConfig{.module_name_pattern = ".*", .params = {.r = 2, .alpha = 3.0}}, *net);
  test::fill(*net);
  const auto stages = make_module<Stages>(net.shared());
  EXPECT_THAT(adapter_parameters(*stages), ElementsAre("adopted.lora_A.weight", "adopted.lora_B.weight",
                                                       "proj.lora_A.weight", "proj.lora_B.weight"));
  std::map<std::string, at::Tensor> made;
  const StateMapper mapper = merged_on_the_way(adapters_of(*stages), mapper::identities(plain));
  for (const TensorSource& source : mapped_sources(mapper, tensors_of(stages->state_dict()))) {
    made.emplace(source.name, source.read().clone());
  }
  (void)merge_peft(*net);
  for (const auto& [name, tensor] : net->state_dict()) EXPECT_TRUE(at::equal(made.at(name), tensor)) << name;
}

TEST(MergedOnTheWay, Has_rows_with_the_norms_that_magnitudes_say) {
  auto model = make_module<test::ToyModel>();
  (void)inject_peft(DoraConfig{.module_name_pattern = "proj|biased", .params = {.r = 2, .alpha = 3.0}}, *model);
  test::fill(*model);
  EXPECT_THAT(adapter_parameters(*model), Contains("proj.lora_magnitude_vector.weight"));
  const at::Tensor magnitudes = model->proj->adapter()->magnitude->weight->local().detach().clone();
  const at::Tensor made = exported(*model, kOwnNames).at("proj.weight");
  EXPECT_TRUE(at::allclose(at::linalg_vector_norm(made, 2, at::IntArrayRef{1}), magnitudes.abs(), 1e-12, 1e-12));
  (void)merge_peft(*model);
  EXPECT_TRUE(at::equal(made, model->proj->weight->local()));
}

TEST(MergedOnTheWay, Leaves_the_model_as_it_is) {
  const auto model = adapted_model(at::kBFloat16);
  const at::Tensor before = model->proj->weight->local().clone();
  EXPECT_FALSE(at::equal(exported(*model, kOwnNames).at("proj.weight"), before));
  EXPECT_TRUE(at::equal(model->proj->weight->local(), before));
  EXPECT_TRUE(model->proj->adapter().has_value());
}

TEST(MergedOnTheWay, Refuses_an_export_without_the_weight_that_it_adds_to) {
  const auto model = adapted_model(at::kFloat);
  EXPECT_THAT(
      [&] {
        (void)exported(*model, mapper::identities({"norm.weight", "proj.weight"}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("an export with 'experts.weight'")));
}

TEST(MergedOnTheWay, Rounds_once_to_the_dtype_of_the_export) {
  const auto model = adapted_model(at::kBFloat16);
  const auto wide = [](const ParameterPtr& weight) { return weight->local().detach().to(at::kFloat); };
  const auto& adapter = *model->proj->adapter();
  const at::Tensor sum = wide(model->proj->weight) + wide(adapter.b->weight).matmul(wide(adapter.a->weight)) * 1.5;
  const auto in_float = exported(*model, kOwnNames, at::kFloat);
  EXPECT_TRUE(at::equal(in_float.at("proj.weight"), sum));
  EXPECT_TRUE(at::equal(in_float.at("norm.weight"), wide(model->norm->weight)));
  EXPECT_TRUE(at::equal(exported(*model, kOwnNames, at::kHalf).at("proj.weight"), sum.to(at::kHalf)));
}

TEST(MergedOnTheWay, Refuses_a_sum_that_overflows) {
  const auto model = adapted_model(at::kBFloat16);
  const auto& adapter = *model->proj->adapter();
  for (const ParameterPtr& each : {adapter.a->weight, adapter.b->weight}) {
    each->copy_from(at::full(each->global_shape(), 300.0, at::kBFloat16));
  }
  EXPECT_NO_THROW(exported(*model, kOwnNames));
  EXPECT_THAT([&] { (void)exported(*model, kOwnNames, at::kHalf); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("merged weights of 'proj' to fit into Half")));
}

}  // namespace
}  // namespace d9d::merged_on_the_way_test
