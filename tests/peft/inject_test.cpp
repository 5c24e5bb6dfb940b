#include "d9d/peft/inject.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/peft/magnitudes.h"

#include "tests/peft/toy_model.h"

namespace d9d::inject_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LoraConfig lora(const std::string& pattern, LoraParams params = {.r = 2, .alpha = 4.0}) {
  return {.module_name_pattern = pattern, .params = params};
}
FullTuneConfig tune(const std::string& pattern) { return {.module_name_pattern = pattern}; }

TEST(InjectPeft, Adds_adapters_as_children_and_freezes_all_else) {
  const auto model = make_module<test::ToyModel>();
  const auto before = model->named_parameters();
  const PeftInjection injected = inject_peft(lora("proj|experts"), *model);
  EXPECT_THAT(injected.adapted, ElementsAre("proj", "experts"));
  EXPECT_THAT(injected.trained, ElementsAre("proj.lora_A.weight", "proj.lora_B.weight", "experts.lora_A.weight",
                                            "experts.lora_B.weight"));
  for (const auto& [name, parameter] : before) EXPECT_FALSE(parameter->requires_grad()) << name;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& [name, parameter] : model->named_parameters()) shapes[name] = parameter->global_shape();
  EXPECT_EQ(shapes.at("proj.lora_A.weight"), (std::vector<std::int64_t>{2, 10}));
  EXPECT_EQ(shapes.at("proj.lora_B.weight"), (std::vector<std::int64_t>{20, 2}));
  EXPECT_EQ(shapes.at("experts.lora_A.weight"), (std::vector<std::int64_t>{3, 6, 2}));
  EXPECT_EQ(shapes.at("experts.lora_B.weight"), (std::vector<std::int64_t>{3, 2, 5}));
  EXPECT_TRUE(shapes.contains("proj.weight"));  // the names of the model's own did not change
}

TEST(InjectPeft, Begins_with_the_function_of_the_model) {
  const auto plain = make_module<test::ToyModel>();
  const auto adapted = make_module<test::ToyModel>();
  (void)inject_peft(lora("proj|biased|experts"), *adapted);
  for (const auto& model : {plain, adapted}) {
    model->to(at::kDouble);
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/3);
  }
  const at::Tensor x = at::linspace(-1, 1, 90, at::kDouble).view({9, 10});
  EXPECT_TRUE(at::equal(adapted(x), plain(x)));
  EXPECT_GT(adapted->proj->adapter()->a->weight->local().abs().min().item<double>(), 0.0);
  EXPECT_LE(adapted->proj->adapter()->a->weight->local().abs().max().item<double>(), 1.0 / std::sqrt(10.0));
}

TEST(InjectPeft, Refuses_a_pattern_that_matches_nothing) {
  const auto error_of = [](const PeftConfig& method) {
    return [method] { return inject_peft(method, *make_module<test::ToyModel>()); };
  };
  EXPECT_THAT(error_of(lora("attention.q_proj")),
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("'attention.q_proj'"), HasSubstr("'proj', 'biased'"))));
  EXPECT_THAT(error_of(lora("pro")), ThrowsMessage<ConfigError>(HasSubstr("'pro'")));    // not the whole name
  EXPECT_THAT(error_of(lora("norm")), ThrowsMessage<ConfigError>(HasSubstr("'norm'")));  // not a linear
  EXPECT_THAT(error_of(StackConfig{.methods = {lora("proj"), tune("none")}}),
              ThrowsMessage<ConfigError>(HasSubstr("'none'")));
}

TEST(InjectPeft, Looks_for_a_pattern_in_all_stages) {
  const auto stage = [](const char* pattern) {
    return inject_peft_into_stage(lora(pattern), *make_module<test::ToyModel>());
  };
  EXPECT_NO_THROW(check_patterns({stage("proj")}));
  PeftInjection other = stage("elsewhere");
  EXPECT_THAT([&] { check_patterns({other, other}); }, ThrowsMessage<ConfigError>(HasSubstr("elsewhere")));
  EXPECT_NO_THROW(check_patterns({other, {.linears = {"elsewhere"}}}));
}

TEST(InjectPeft, Refuses_what_is_not_built) {
  const auto error_of = [](const PeftConfig& method) {
    return [method] { return inject_peft(method, *make_module<test::ToyModel>()); };
  };
  EXPECT_THAT(error_of(StackConfig{.methods = {lora("proj"), lora("proj|biased")}}),
              ThrowsMessage<ConfigError>(HasSubstr("two for 'proj'")));
  EXPECT_THAT(error_of(LoraConfig{.module_name_pattern = "proj"}), ThrowsMessage<ConfigError>(HasSubstr("r > 0")));
  for (const double alpha : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(error_of(lora("proj", {.r = 2, .alpha = alpha})),
                ThrowsMessage<ConfigError>(HasSubstr("a finite alpha > 0 of 'proj'")));
  }
}

TEST(InjectPeft, Refuses_a_model_that_has_adapters) {
  const auto model = make_module<test::ToyModel>();
  (void)inject_peft(lora("proj"), *model);
  EXPECT_THAT([&] { return inject_peft(lora("biased"), *model); },
              ThrowsMessage<ConfigError>(HasSubstr("got one of 'proj'")));
  EXPECT_TRUE(model->proj->adapter()->a->weight->requires_grad());
}

DoraConfig dora(const std::string& pattern, LoraParams params = {.r = 2, .alpha = 4.0}) {
  return {.module_name_pattern = pattern, .params = params};
}

TEST(InjectPeft, Adds_magnitudes_of_the_rows_of_linears) {
  const auto model = make_module<test::ToyModel>();
  model->to(at::kBFloat16);
  EXPECT_THAT(inject_peft(dora("proj"), *model).trained,
              ElementsAre("proj.lora_A.weight", "proj.lora_B.weight", "proj.lora_magnitude_vector.weight"));
  const ParameterPtr magnitude = model->proj->adapter()->magnitude->weight;
  EXPECT_THAT(magnitude->global_shape(), ElementsAre(20));
  EXPECT_EQ(magnitude->role(), ParameterRole::kVector);
  EXPECT_EQ(magnitude->local().scalar_type(), at::kFloat);  // what it learns is small beside its values
  EXPECT_FALSE(model->proj->is_product());
  EXPECT_TRUE(is_adapter_parameter("proj.lora_magnitude_vector.weight"));
  EXPECT_FALSE(is_adapter_parameter("proj.lora_magnitude_vector.bias"));
}

TEST(InjectPeft, Begins_magnitudes_with_the_function_of_the_model) {
  for (const auto& [dtype, pattern] : {std::pair{at::kBFloat16, "proj"}, std::pair{at::kDouble, "proj|biased"}}) {
    const auto plain = make_module<test::ToyModel>();
    const auto adapted = make_module<test::ToyModel>();
    for (const auto& model : {plain, adapted}) {
      model->to(dtype);
      if (model.shared() == adapted.shared()) (void)inject_peft(dora(pattern), *adapted);
      model->materialize(at::kCPU);
      model->reset_parameters(/*base_seed=*/3);
    }
    const at::Tensor x = at::linspace(-1, 1, 90, at::kDouble).view({9, 10}).to(dtype);
    EXPECT_TRUE(adapted(x).isnan().all().item<bool>());  // not the function of another model
    begin_magnitudes(*adapted);
    const double tolerance = dtype == at::kDouble ? 1e-12 : 0.0;
    EXPECT_TRUE(at::allclose(adapted(x), plain(x), tolerance, tolerance));
  }
}

TEST(InjectPeft, Leaves_magnitudes_that_have_values) {
  const auto model = make_module<test::ToyModel>();
  (void)inject_peft(dora("proj|biased"), *model);
  test::fill(*model);
  const at::Tensor before = model->proj->adapter()->magnitude->weight->local().detach().clone();
  begin_magnitudes(*model, {"proj.lora_magnitude_vector.weight"});
  EXPECT_TRUE(at::equal(model->proj->adapter()->magnitude->weight->local(), before));
  const auto& adapter = *model->biased->adapter();  // which has a B
  const at::Tensor sum =
      model->biased->weight->local() + adapter.b->weight->local().matmul(adapter.a->weight->local()) * 2;
  EXPECT_TRUE(at::allclose(adapter.magnitude->weight->local(), at::linalg_vector_norm(sum, 2, at::IntArrayRef{1})));
}

// A layer that computes twice, under two names.
class Recurrent : public Module {
 public:
  Recurrent() : first(register_module<Linear>("first", LinearConfig{4, 4})) { register_module("second", first); }
  const ModulePtr<Linear> first;
};

TEST(InjectPeft, Leaves_magnitudes_of_a_module_of_two_names_that_have_values) {
  const auto model = make_module<Recurrent>();
  (void)inject_peft(dora("first"), *model);
  test::fill(*model);
  const at::Tensor before = model->first->adapter()->magnitude->weight->local().detach().clone();
  begin_magnitudes(*model, {"first.lora_magnitude_vector.weight"});
  EXPECT_TRUE(at::equal(model->first->adapter()->magnitude->weight->local(), before));
}

TEST(InjectPeft, Refuses_magnitudes_of_others_than_frozen_linears) {
  const auto error_of = [](const PeftConfig& method) {
    return [method] { return inject_peft(method, *make_module<test::ToyModel>()); };
  };
  EXPECT_THAT(error_of(dora("experts")), ThrowsMessage<ConfigError>(HasSubstr("got 'experts'")));
  EXPECT_THAT(error_of(dora("router")), ThrowsMessage<ConfigError>(HasSubstr("got 'router'")));
  EXPECT_THAT(error_of(StackConfig{.methods = {dora("proj"), lora("proj")}}),
              ThrowsMessage<ConfigError>(HasSubstr("two for 'proj'")));
  EXPECT_THAT(error_of(StackConfig{.methods = {tune("proj"), dora("proj")}}),
              ThrowsMessage<ConfigError>(HasSubstr("got both for 'proj'")));
  EXPECT_NO_THROW(error_of(StackConfig{.methods = {tune(""), dora("proj")}})());
}

TEST(InjectPeft, Full_tune_leaves_the_bases_of_adapters_frozen_unless_they_are_named) {
  for (const bool adapters_first : {true, false}) {
    std::vector<PeftConfig> methods = {lora("proj|biased"), tune("|norm|biased")};  // "": the whole model
    if (!adapters_first) std::ranges::reverse(methods);
    const auto model = make_module<test::ToyModel>();
    EXPECT_THAT(inject_peft(StackConfig{.methods = methods}, *model).trained,
                ElementsAre("norm.weight", "proj.lora_A.weight", "proj.lora_B.weight", "biased.weight", "biased.bias",
                            "biased.lora_A.weight", "biased.lora_B.weight", "experts.weight", "router.weight"));
  }
}

TEST(InjectPeft, Refuses_a_full_tune_that_trains_nothing) {
  struct Parent : Module {
    const ModulePtr<Linear> proj = register_module<Linear>("proj", LinearConfig{4, 4});
  };
  struct Net : Module {
    const ModulePtr<Parent> inner = register_module<Parent>("inner");
  };
  const auto error_of = [](const PeftConfig& method) {
    return [method] { return inject_peft(method, *make_module<Net>()); };
  };
  EXPECT_NO_THROW(error_of(tune("inner"))());
  EXPECT_THAT(error_of(StackConfig{.methods = {lora("inner.proj"), tune("inner")}}),
              ThrowsMessage<ConfigError>(HasSubstr("'inner' to match the whole name of a module of which it trains")));
}

TEST(InjectPeft, Stacks_may_be_nested) {
  const auto model = make_module<test::ToyModel>();
  const StackConfig inner{.methods = {tune("norm")}};
  EXPECT_THAT(inject_peft(StackConfig{.methods = {lora("proj"), inner}}, *model).trained,
              ElementsAre("norm.weight", "proj.lora_A.weight", "proj.lora_B.weight"));
}

TEST(Adapter, Adds_its_scaled_term) {  // the reference's case by hand
  auto linear = make_module<Linear>(LinearConfig{10, 20});
  linear->add_adapter({.rank = 2, .scale = LoraParams{.r = 2, .alpha = 4.0}.scale()});
  linear->materialize(at::kCPU);
  linear->reset_parameters(1);
  linear->weight->copy_from(at::ones({20, 10}));
  linear->adapter()->a->weight->copy_from(at::full({2, 10}, 0.5));
  linear->adapter()->b->weight->copy_from(at::full({20, 2}, 0.1));
  EXPECT_TRUE(at::allclose(linear(at::ones({1, 10})), at::full({1, 20}, 12.0)));
}

TEST(Adapter, Of_experts_is_one_for_each_expert) {
  const auto model = make_module<test::ToyModel>();
  (void)inject_peft(lora("experts", {.r = 2, .alpha = 3.0}), *model);
  test::fill(*model);
  const at::Tensor x = at::linspace(-1, 1, 54, at::kDouble).view({9, 6});
  const auto groups = kernels::ExpertTokenGroups::from_counts(at::tensor({4, 0, 5}));
  const auto weight_of = [&](const ParameterPtr& weight) { return weight->local().detach().clone().requires_grad_(); };
  const at::Tensor w = weight_of(model->experts->weight);
  const at::Tensor a = weight_of(model->experts->adapter()->a->weight);
  const at::Tensor b = weight_of(model->experts->adapter()->b->weight);
  const auto expert = [&](const at::Tensor& rows, std::int64_t e) {
    return rows.matmul(w[e]) + 1.5 * rows.matmul(a[e]).matmul(b[e]);
  };
  const at::Tensor expected = at::cat({expert(x.narrow(0, 0, 4), 0), expert(x.narrow(0, 4, 5), 2)});
  const at::Tensor actual = model->experts(x, groups);
  EXPECT_TRUE(at::allclose(actual, expected, 1e-12, 1e-12));
  const at::Tensor seed = at::linspace(-2, 1, 45, at::kDouble).view({9, 5});
  (actual * seed).sum().backward();
  (expected * seed).sum().backward();
  EXPECT_TRUE(at::allclose(model->experts->adapter()->a->weight->local().grad(), a.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(model->experts->adapter()->b->weight->local().grad(), b.grad(), 1e-12, 1e-12));
  EXPECT_FALSE(model->experts->weight->local().grad().defined());
}

TEST(Adapter, Drops_what_A_reads_in_training_alone) {
  const auto model = make_module<test::ToyModel>();
  (void)inject_peft(lora("proj", {.r = 2, .alpha = 2.0, .dropout = 0.5}), *model);
  test::fill(*model);
  const at::Tensor x = at::ones({40, 10}, at::kDouble);
  const at::Tensor base = at::linear(x, model->proj->weight->local());
  const auto& adapter = *model->proj->adapter();
  const auto term_of = [&](const at::Tensor& read) {
    return at::linear(at::linear(read, adapter.a->weight->local()), adapter.b->weight->local());
  };
  model->eval();
  EXPECT_TRUE(at::allclose(model->proj(x), base + term_of(x)));
  model->train();
  const at::Tensor trained = model->proj(x);
  model->random_clock()->microbatch = {};  // the same draw again
  EXPECT_TRUE(at::allclose(trained, base + term_of(adapter.dropout(x))));
  EXPECT_FALSE(at::allclose(trained, base + term_of(x)));
  EXPECT_FALSE(at::allclose(trained[0], trained[1]));
}

TEST(Adapter, Joined_linears_give_what_each_gives_alone) {
  std::vector<ModulePtr<Linear>> linears;
  for (int i = 0; i < 4; ++i) {
    linears.push_back(make_module<Linear>(LinearConfig{6, 4 + i, /*has_bias=*/true}));
    if (i != 1) linears.back()->add_adapter({.rank = 2 + i, .scale = 0.5 + i, .dropout = i == 2 ? 0.3 : 0.0});
    test::fill(*linears.back());
    linears.back()->eval();
  }
  const at::Tensor x = at::linspace(-1, 1, 30, at::kDouble).view({5, 6});
  const std::vector<at::Tensor> joined = linears_of(x, linears);
  for (std::size_t i = 0; i < linears.size(); ++i) {
    EXPECT_TRUE(at::allclose(joined[i], linears[i](x), 1e-12, 1e-12)) << i;
    EXPECT_TRUE(
        at::allclose(linears[i]->forward(x, LinearBias::kLeftOut) + linears[i]->bias->local(), joined[i], 1e-12, 1e-12))
        << i;
  }
}

}  // namespace
}  // namespace d9d::inject_test
