#include "d9d/peft/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/peft/inject.h"

#include "tests/peft/toy_model.h"

namespace d9d::merge_test {
namespace {

ModulePtr<test::ToyModel> adapted_model(const PeftConfig& method, at::ScalarType dtype) {
  auto model = make_module<test::ToyModel>();
  (void)inject_peft(method, *model);
  test::fill(*model, dtype);
  return model;
}
ModulePtr<test::ToyModel> adapted_model(at::ScalarType dtype) {
  return adapted_model(LoraConfig{.module_name_pattern = "proj|biased|experts", .params = {.r = 2, .alpha = 4.0}},
                       dtype);
}
const DoraConfig kDora{.module_name_pattern = "proj|biased", .params = {.r = 2, .alpha = 4.0}};

const at::Tensor kX = at::linspace(-1, 1, 90, at::kDouble).view({9, 10});

std::map<std::string, at::Tensor> copies_of(const Module& model) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : model.state_dict()) copies.emplace(name, tensor.clone());
  return copies;
}

TEST(MergePeft, Computes_the_same_without_adapters) {
  for (const auto& model : {adapted_model(at::kDouble), adapted_model(kDora, at::kDouble)}) {
    const at::Tensor expected = model(kX);
    const auto merged = merge_peft(*model);
    EXPECT_TRUE(at::allclose(model(kX), expected, 1e-12, 1e-12));
    for (const auto& [name, parameter] : model->named_parameters()) {
      EXPECT_THAT(name, ::testing::Not(::testing::HasSubstr("lora")));
    }
    EXPECT_EQ(model->named_parameters().size(), make_module<test::ToyModel>()->named_parameters().size());
  }
}

TEST(MergePeft, Rounds_a_sum_in_float32_once) {
  const auto model = adapted_model(at::kBFloat16);
  const auto wide = [](const ParameterPtr& weight) { return weight->local().detach().to(at::kFloat); };
  const auto& dense = *model->proj->adapter();
  const auto& experts = *model->experts->adapter();
  const at::Tensor of_proj = wide(model->proj->weight) + wide(dense.b->weight).matmul(wide(dense.a->weight)) * 2.0;
  const at::Tensor of_experts =
      wide(model->experts->weight) + wide(experts.a->weight).matmul(wide(experts.b->weight)) * 2.0;
  const auto merged = merge_peft(*model);
  EXPECT_TRUE(at::equal(model->proj->weight->local(), of_proj.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(model->experts->weight->local(), of_experts.to(at::kBFloat16)));
}

TEST(MergePeft, Is_undone_bit_for_bit) {
  for (const auto& model : {adapted_model(at::kBFloat16), adapted_model(kDora, at::kBFloat16)}) {
    const auto before = copies_of(*model);
    MergedPeft merged = merge_peft(*model);
    EXPECT_FALSE(at::equal(model->proj->weight->local(), before.at("proj.weight")));
    merged.unmerge();
    const auto after = copies_of(*model);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, tensor] : after) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
    merged.unmerge();
    EXPECT_TRUE(at::equal(model->proj->weight->local(), before.at("proj.weight")));
  }
}

TEST(MergePeft, Refuses_a_sum_that_overflows_and_changes_nothing) {
  const auto model = adapted_model(at::kHalf);
  const auto& adapter = *model->experts->adapter();  // of the last module that is merged
  for (const ParameterPtr& each : {adapter.a->weight, adapter.b->weight}) {
    each->copy_from(at::full(each->global_shape(), 300.0, at::kHalf));
  }
  const auto before = copies_of(*model);
  EXPECT_THAT(
      [&] { (void)merge_peft(*model); },
      ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("merged weights of 'experts' to fit into Half")));
  const auto after = copies_of(*model);
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : after) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
}

TEST(MergePeft, Refuses_weights_that_another_module_reads_too) {
  struct Tied : Module {
    explicit Tied(const ParameterPtr& weight) { register_parameter("weight", weight); }
  };
  struct Net : Module {
    const ModulePtr<Linear> proj = register_module<Linear>("proj", LinearConfig{4, 4});
    const ModulePtr<Linear> same = register_module("same", proj);  // one module under two names
  };
  const auto merged = [](Net& net) {
    (void)inject_peft(LoraConfig{.module_name_pattern = "proj", .params = {.r = 2, .alpha = 4.0}}, net);
    test::fill(net);
    (void)merge_peft(net);
  };
  EXPECT_NO_THROW(merged(*make_module<Net>()));
  struct TiedNet : Net {
    const ModulePtr<Tied> tied = register_module<Tied>("tied", proj->weight);
  };
  EXPECT_THAT([&] { merged(*make_module<TiedNet>()); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("those of 'proj', which are tied")));
}

TEST(MergePeft, Reads_the_master_weights_of_adapters) {
  auto model = make_module<test::ToyModel>();
  (void)inject_peft(LoraConfig{.module_name_pattern = "proj", .params = {.r = 2, .alpha = 4.0}}, *model);
  for (const auto& [name, parameter] : model->named_parameters()) parameter->set_init(init::normal(0.5));
  model->to(at::kBFloat16);
  keep_parameters_in(model.shared(), at::kFloat);
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/3);
  const auto adapter = *model->proj->adapter();  // which merging takes away
  const at::Tensor expected = model->proj->weight->local().detach().to(at::kFloat) +
                              adapter.b->weight->stored().detach().matmul(adapter.a->weight->stored().detach()) * 2.0;
  const auto merged = merge_peft(*model);
  EXPECT_EQ(adapter.a->weight->stored().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(model->proj->weight->local(), expected.to(at::kBFloat16)));
}

}  // namespace
}  // namespace d9d::merge_test
