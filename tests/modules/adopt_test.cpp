#include "d9d/modules/adopt.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"

namespace d9d::adopt_test {
namespace {

namespace nn = torch::nn;
using enum ParameterRole;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nn::Linear linear() { return nn::Linear(6, 4); }
nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({6})); }
nn::Conv1d convolution() { return nn::Conv1d(3, 5, 2); }

template <class Make>
struct Holder : Module {
  explicit Holder(Make make) : layer(register_module("layer", adopt(make))) {}
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  const ModulePtr<Adopted<detail::AdoptedImpl<Make>>> layer;
};

template <class Make>
ModulePtr<Holder<Make>> ready(Make make, std::uint64_t seed = 1, at::ScalarType dtype = at::kDouble) {
  auto model = make_module<Holder<Make>>(make);
  model->to(dtype);
  model->materialize(at::kCPU);
  model->reset_parameters(seed);
  return model;
}

// Distinct numbers, computed without a random generator.
at::Tensor waves(at::IntArrayRef shape) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 1.7).view(shape);
}

at::Tensor default_generator_state() { return at::globalContext().defaultGenerator(at::kCPU).get_state(); }

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : module.state_dict()) result.push_back(name);
  return result;
}

// Output, gradient of the input and gradients of the parameters must equal those of torch::nn with the same values.
template <class Make>
void expect_equals_torch(Make make, at::IntArrayRef input_shape, bool checkpoints) {
  const auto model = ready(make);
  model->layer->set_activation_checkpointing(checkpoints);
  const at::Tensor x = waves(input_shape).set_requires_grad(true);
  const at::Tensor y = model(x);
  (y * waves(y.sizes())).sum().backward();

  auto plain = make();
  plain->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (auto& entry : plain->named_parameters()) entry.value().copy_(model->state_dict().at("layer." + entry.key()));
  }
  const at::Tensor plain_x = waves(input_shape).set_requires_grad(true);
  const at::Tensor plain_y = plain->forward(plain_x);
  (plain_y * waves(plain_y.sizes())).sum().backward();

  EXPECT_TRUE(at::equal(y, plain_y));
  EXPECT_TRUE(at::equal(x.grad(), plain_x.grad()));
  for (const auto& [name, parameter] : model->layer->named_parameters()) {
    EXPECT_TRUE(at::equal(parameter->local().grad(), plain->named_parameters()[name].grad())) << name;
  }
}

TEST(Adopt, Computes_and_differentiates_as_torch_nn_does) {
  for (const bool checkpoints : {false, true}) {
    SCOPED_TRACE(checkpoints);
    expect_equals_torch(linear, {2, 6}, checkpoints);
    expect_equals_torch(layer_norm, {3, 6}, checkpoints);
    expect_equals_torch(convolution, {2, 3, 7}, checkpoints);
  }
}

TEST(Adopt, Construction_keeps_names_and_shapes_but_no_storage) {
  const auto model = make_module<Holder<decltype(&convolution)>>(convolution);
  EXPECT_THAT(names(*model), ElementsAre("layer.bias", "layer.weight"));
  for (const auto& [name, parameter] : model->named_parameters()) EXPECT_TRUE(parameter->local().is_meta()) << name;
  EXPECT_THAT(model->layer->named_parameters().front().second->global_shape(), ElementsAre(5, 3, 2));
}

TEST(Adopt, Values_depend_on_seed_and_name_alone) {
  const auto weight = [](const auto& model) { return model->state_dict().at("layer.weight"); };
  EXPECT_TRUE(at::equal(weight(ready(linear, 1)), weight(ready(linear, 1))));
  EXPECT_FALSE(at::equal(weight(ready(linear, 1)), weight(ready(linear, 2))));
  struct Two : Module {
    Two() { register_module("a", adopt(linear)), register_module("b", adopt(linear)); }
  };
  Two two;
  two.materialize(at::kCPU);
  two.reset_parameters(1);
  EXPECT_FALSE(at::equal(two.state_dict().at("a.weight"), two.state_dict().at("b.weight")));
}

TEST(Adopt, Values_are_those_that_torch_nn_draws_from_the_seed_of_the_name) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor state = generator.get_state();
  generator.set_current_seed(philox_key(7, "init", "layer"));
  const nn::Linear expected = linear();
  generator.set_state(state);
  EXPECT_TRUE(at::equal(ready(linear, 7, at::kFloat)->state_dict().at("layer.weight"), expected->weight));
}

TEST(Adopt, Leaves_the_default_generator_as_it_was) {
  const at::Tensor before = default_generator_state();
  const auto model = ready(linear);
  (void)model(waves({2, 6}));
  EXPECT_TRUE(at::equal(before, default_generator_state()));
}

TEST(Adopt, Values_are_missing_until_reset) {
  const auto model = make_module<Holder<decltype(&linear)>>(linear);
  model->materialize(at::kCPU);
  EXPECT_THAT([&] { model->check_initialized(); }, ThrowsMessage<StateError>(HasSubstr("{layer.weight, layer.bias}")));
}

TEST(Adopt, Sees_what_is_done_to_the_parameters_from_outside) {
  const auto model = ready(linear, 1, at::kFloat);
  const at::Tensor held = model->named_parameters().front().second->local();
  model->to(at::kDouble);
  model->state_dict().at("layer.weight").fill_(2);
  model->state_dict().at("layer.bias").fill_(1);
  const at::Tensor y = model(at::ones({1, 6}, at::kDouble));
  EXPECT_TRUE(at::equal(y, at::full({1, 4}, 13, at::kDouble)));
  y.sum().backward();
  EXPECT_TRUE(at::equal(held.grad(), at::ones({4, 6}, at::kDouble)));
}

TEST(Adopt, Follows_the_mode_and_keeps_buffers) {
  const auto make = [] { return nn::BatchNorm1d(3); };
  const auto model = ready(make);
  EXPECT_THAT(names(*model), ElementsAre("layer.bias", "layer.num_batches_tracked", "layer.running_mean",
                                         "layer.running_var", "layer.weight"));
  EXPECT_TRUE(at::equal(model->state_dict().at("layer.running_var"), at::ones({3}, at::kDouble)));
  (void)model(waves({4, 3}));
  EXPECT_EQ(model->state_dict().at("layer.num_batches_tracked").item<std::int64_t>(), 1);
  const at::Tensor mean = model->state_dict().at("layer.running_mean").clone();
  EXPECT_TRUE(at::allclose(mean, waves({4, 3}).mean(0) * 0.1));
  model->eval();
  (void)model(waves({4, 3}));
  EXPECT_TRUE(at::equal(model->state_dict().at("layer.running_mean"), mean));
}

TEST(Adopt, Gives_frozen_modules_inside_their_mode_back_after_an_evaluation) {
  const auto model = ready([] {
    nn::Sequential layers(nn::BatchNorm1d(6), nn::Linear(6, 4));
    layers[0]->eval();
    return layers;
  });
  const auto mean = [&] { return model->state_dict().at("layer.0.running_mean").clone(); };
  const at::Tensor before = mean(), x = at::arange(18, at::kDouble).view({3, 6});
  (void)model(x);
  EXPECT_TRUE(at::equal(mean(), before)) << "frozen in training";
  model->eval();
  (void)model(x);
  model->train();
  (void)model(x);
  EXPECT_TRUE(at::equal(mean(), before)) << "and after an evaluation";
}

// A matrix without a role is one between hidden activations.
TEST(Adopt, Tables_of_embeddings_and_scales_of_norms_say_what_they_are) {
  const auto role_in = [](const Module& module) { return module.named_parameters().front().second->role(); };
  EXPECT_EQ(role_in(*make_module<Holder<nn::Embedding (*)()>>([] { return nn::Embedding(5, 4); })), kEmbedding);
  EXPECT_EQ(role_in(*make_module<Holder<nn::EmbeddingBag (*)()>>([] { return nn::EmbeddingBag(5, 4); })), kEmbedding);
  const auto norm = [] { return nn::LayerNorm(nn::LayerNormOptions({3, 4})); };
  EXPECT_EQ(role_in(*make_module<Holder<nn::LayerNorm (*)()>>(norm)), kNorm);
  EXPECT_EQ(role_in(*make_module<Holder<nn::Linear (*)()>>(linear)), kUnknown);
}

TEST(Adopt, Nested_modules_keep_their_dotted_names) {
  const auto make = [] { return nn::Sequential(linear(), nn::Linear(nn::LinearOptions(4, 1).bias(false))); };
  const auto model = ready(make);
  EXPECT_THAT(names(*model), ElementsAre("layer.0.bias", "layer.0.weight", "layer.1.weight"));
  model(waves({2, 6})).sum().backward();
  for (const auto& [name, parameter] : model->named_parameters()) {
    EXPECT_TRUE(parameter->local().grad().defined()) << name;
  }
}

TEST(Adopt, Refuses_a_forward_that_draws_random_numbers) {
  const auto make = [] { return nn::Sequential(linear(), nn::Dropout(0.5)); };
  const auto model = ready(make);
  EXPECT_THAT(
      [&] {
        (void)model(waves({2, 6}));
      },
      ThrowsMessage<StateError>(HasSubstr("expected layer (torch::nn::SequentialImpl) to draw no random")));
  model->eval();
  EXPECT_NO_THROW((void)model(waves({2, 6})));
}

TEST(Adopt, Refuses_forward_without_storage_and_with_replaced_leaves) {
  const auto bare = make_module<Holder<decltype(&linear)>>(linear);
  EXPECT_THAT([&] { (void)bare(waves({2, 6})); }, ThrowsMessage<StateError>(HasSubstr("Call materialize()")));
  const auto model = ready(linear);
  const auto weight = model->named_parameters().front().second;
  weight->replace_local(at::zeros({4, 6}, at::kDouble));
  EXPECT_THAT(
      [&] {
        (void)model(waves({2, 6}));
      },
      ThrowsMessage<StateError>(HasSubstr("expected layer.weight to be the tensor")));
}

TEST(Adopt, Refuses_parameters_that_are_tied_inside) {
  struct Tied : nn::Module {
    Tied() {
      weight = register_parameter("first", at::ones({2}));
      register_parameter("second", weight);
    }
    at::Tensor forward(const at::Tensor& x) { return x * weight; }
    at::Tensor weight;
  };
  EXPECT_THAT([] { (void)ready([] { return std::make_shared<Tied>(); }); },
              ThrowsMessage<ConfigError>(HasSubstr("one tensor as 'first' and 'second'")));
}

}  // namespace
}  // namespace d9d::adopt_test
