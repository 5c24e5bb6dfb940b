#include "d9d/peft/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/magnitudes.h"

#include "tests/parallelism/one_rank.h"
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

TEST(MergePeft, Refuses_rows_that_overflow_with_their_magnitudes) {
  const auto model = make_module<test::ToyModel>();
  model->to(at::kHalf);
  (void)inject_peft(kDora, *model);  // with magnitudes in float32
  for (const auto& [name, parameter] : model->named_parameters()) parameter->set_init(init::normal(0.5));
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/3);
  const auto adapter = *model->proj->adapter();
  for (const ParameterPtr& each : {adapter.a->weight, adapter.b->weight}) {
    each->copy_from(at::full(each->global_shape(), 300.0, at::kHalf));
  }
  EXPECT_NO_THROW(merge_peft(*model).unmerge());  // W + scale * B A does not fit, its rows with these norms do
  adapter.magnitude->weight->copy_from(at::full(adapter.magnitude->weight->global_shape(), 1e6));
  EXPECT_THAT([&] { (void)merge_peft(*model); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("merged weights of 'proj' to fit into Half")));
}

TEST(MergePeft, Keeps_a_row_of_zeros_that_has_a_magnitude) {
  const auto model = make_module<test::ToyModel>();
  (void)inject_peft(kDora, *model);
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/3);
  at::Tensor values = model->proj->weight->local().detach().clone();
  values[0].zero_();
  model->proj->weight->copy_from(values);
  begin_magnitudes(*model);
  const at::Tensor x = at::ones({2, values.size(1)});
  const at::Tensor y = model->proj(x);
  EXPECT_TRUE(at::equal(y.select(-1, 0), at::zeros({2})));
  y.sum().backward();
  for (const auto& [name, parameter] : model->proj->named_parameters()) {
    if (!parameter->requires_grad()) continue;
    EXPECT_TRUE(parameter->stored().grad().isfinite().all().item<bool>()) << name;
  }
  MergedPeft merged = merge_peft(*model);
  EXPECT_TRUE(at::allclose(model->proj->weight->local(), values));
  merged.unmerge();
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

// The same numbers on one rank, and cut by tensor parallelism.
using Pair = std::pair<ModulePtr<SwiGLU>, ModulePtr<SwiGLU>>;
Pair whole_and_cut(World& world) {
  const SwiGLUConfig config{.hidden_size = 6, .intermediate_size = 9};
  const Pair pair = {make_module<SwiGLU>(config), make_module<SwiGLU>(config)};
  const DoraConfig dora{.module_name_pattern = ".*_proj", .params = {.r = 2, .alpha = 4.0}};
  for (const auto& model : {pair.first, pair.second}) (void)inject_peft(dora, *model);
  parallelize_tensor_parallel(*pair.second, test::mesh_of(world, "tp"));
  for (const auto& model : {pair.first, pair.second}) test::fill(*model);
  return pair;
}

void expect_same(const Pair& pair) {
  const auto actual = pair.second->full_state_dict();
  for (const auto& [name, tensor] : pair.first->state_dict()) {
    EXPECT_TRUE(at::allclose(actual.at(name), tensor, 1e-12, 1e-12)) << name;
  }
}

TEST(MergePeft, Has_the_norms_of_whole_rows_where_tensor_parallelism_cuts_them) {
  test::run_ranks(test::RankBackend::kThreads, 2, [](World& world) {
    const Pair pair = whole_and_cut(world);
    (void)merge_peft(*pair.first);
    (void)merge_peft(*pair.second);
    expect_same(pair);
  });
}

TEST(Magnitudes, Begin_with_the_norms_of_whole_rows_where_tensor_parallelism_cuts_them) {
  test::run_ranks(test::RankBackend::kThreads, 2, [](World& world) {
    const Pair pair = whole_and_cut(world);
    begin_magnitudes(*pair.first);
    begin_magnitudes(*pair.second);
    expect_same(pair);
  });
}

}  // namespace
}  // namespace d9d::merge_test
