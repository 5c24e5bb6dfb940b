// Buffers that forward writes, under activation checkpointing: gradients and buffers are those of one run, or the
// module is refused by name.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include "d9d/base/check.h"
#include "d9d/modules/adopt.h"

namespace d9d::recomputed_buffers_test {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSize = 3;

at::Tensor waves(double phase, at::IntArrayRef shape) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 1.7 + phase).view(shape);
}

// forward(x) = use(x, statistic), where `use` may write the buffer.
struct Counting : Module {
  using Use = std::function<at::Tensor(const at::Tensor& x, at::Tensor& statistic)>;
  explicit Counting(Use use_it)
      : use(std::move(use_it)),
        statistic(register_buffer("statistic", {.shape = {kSize}, .dtype = at::kDouble, .init = init::zeros()})) {}
  at::Tensor forward(const at::Tensor& x) { return at::sin(use(x, statistic->local)); }
  const Use use;
  const BufferPtr statistic;
};

// The module under test stands below another, so that it has a name.
struct Holder : Module {
  explicit Holder(const Counting::Use& use) : layer(register_module<Counting>("layer", use)) {}
  at::Tensor forward(const at::Tensor& x) { return layer(at::sin(x)); }
  const ModulePtr<Counting> layer;
};

enum class Where { kItself, kAround, kBoth };

// Two microbatches, of which the second's forward runs before the first's backward.
void train(const Counting::Use& use, Where where) {
  const auto model = make_module<Holder>(use);
  model->materialize(at::kCPU);
  model->reset_parameters(1);
  model->layer->set_activation_checkpointing(where != Where::kAround);
  model->set_activation_checkpointing(where != Where::kItself);
  const at::Tensor first = waves(0, {4, kSize}).set_requires_grad(true);
  const at::Tensor second = waves(1, {4, kSize}).set_requires_grad(true);
  const at::Tensor y = model(first);
  const at::Tensor z = model(second);
  y.sum().backward();
  z.sum().backward();
}

void expect_refused(const Counting::Use& use) {
  for (const Where where : {Where::kItself, Where::kAround, Where::kBoth}) {
    SCOPED_TRACE(static_cast<int>(where));
    EXPECT_THAT([&] { train(use, where); },
                ThrowsMessage<StateError>(AllOf(HasSubstr("the buffer layer.statistic"), HasSubstr("in layer"))));
  }
}

void add_mean(at::Tensor& statistic, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  statistic.mul_(0.9).add_(x.mean(0), 0.1);
}

TEST(RecomputedBuffers, Written_in_both_runs_are_refused) {
  expect_refused([](const at::Tensor& x, at::Tensor& statistic) {
    add_mean(statistic, x);
    return x.exp();
  });
}

TEST(RecomputedBuffers, Read_after_others_wrote_them_are_refused) {
  expect_refused([](const at::Tensor& x, at::Tensor& statistic) {
    const at::Tensor normed = x.exp() - statistic.clone();
    if (!is_recomputing()) add_mean(statistic, x);
    return normed;
  });
}

TEST(RecomputedBuffers, Replaced_by_other_tensors_are_refused) {
  expect_refused([](const at::Tensor& x, at::Tensor& statistic) {
    statistic = statistic + x.detach().mean(0);
    return x.exp() * statistic;
  });
}

TEST(RecomputedBuffers, Replaced_by_equal_tensors_are_accepted) {
  const Counting::Use replaces = [](const at::Tensor& x, at::Tensor& statistic) {
    statistic = statistic.clone();
    return x.exp() * statistic;
  };
  for (const Where where : {Where::kItself, Where::kAround, Where::kBoth}) EXPECT_NO_THROW(train(replaces, where));
}

TEST(RecomputedBuffers, Made_in_inference_mode_are_accepted_unless_their_values_change) {
  const auto holder = [](const Counting::Use& use) {
    const auto model = make_module<Holder>(use);
    model->materialize(at::kCPU);
    model->reset_parameters(1);
    model->layer->set_activation_checkpointing(true);
    const c10::InferenceMode inference;
    model->layer->statistic->local = at::full({kSize}, 0.5, at::kDouble);
    return model;
  };
  const auto only_reads = [](const at::Tensor& x, at::Tensor& statistic) { return x + statistic.sum(); };
  const at::Tensor x = waves(0, {4, kSize}).set_requires_grad(true);
  EXPECT_NO_THROW(holder(only_reads)(x).sum().backward());
  const auto model = holder(only_reads);
  const at::Tensor y = model(x);
  {
    const c10::InferenceMode inference;
    model->layer->statistic->local.add_(1);
  }
  EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<StateError>(HasSubstr("the buffer layer.statistic")));
}

TEST(RecomputedBuffers, Of_a_batch_norm_of_ones_own_are_refused) {
  expect_refused([](const at::Tensor& x, at::Tensor& statistic) {
    const at::Tensor variance = at::ones_like(statistic);
    return at::batch_norm(x, {}, {}, statistic, variance, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
  });
}

TEST(RecomputedBuffers, Written_once_or_only_read_are_accepted) {
  for (const Where where : {Where::kItself, Where::kAround, Where::kBoth}) {
    EXPECT_NO_THROW(train(
        [](const at::Tensor& x, at::Tensor& statistic) {
          if (!is_recomputing()) add_mean(statistic, x);
          return x.exp();
        },
        where));
    EXPECT_NO_THROW(train(
        [](const at::Tensor& x, at::Tensor& statistic) {
          const at::Tensor variance = at::ones_like(statistic);
          return x.exp() * statistic +
                 at::batch_norm(x, {}, {}, statistic, variance, /*training=*/false, 0.1, 1e-5, false);
        },
        where));
  }
}

// What torch::nn's modules do: reads its buffer after it has written it.
struct Drifting : nn::Module {
  Drifting() : shift(register_buffer("shift", at::zeros({kSize}, at::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    shift.mul_(0.5).add_(x.mean(0));
    const at::AutoGradMode grad(true);
    return at::sin(x * shift.clone());
  }
  at::Tensor shift;
};

template <class Make>
struct Adopting : Module {
  explicit Adopting(Make make) : layer(register_module("layer", adopt(make))) {}
  at::Tensor forward(const at::Tensor& x) { return at::tanh(layer(at::sin(x))); }
  const ModulePtr<Adopted<detail::AdoptedImpl<Make>>> layer;
};

// Gradients of two microbatches and the buffers after them, which must be those without checkpoints.
template <class Make>
void expect_one_run(Make make, at::IntArrayRef shape) {
  const auto train = [&](bool checkpoints_layer, bool checkpoints_all) {
    const auto model = make_module<Adopting<Make>>(make);
    model->to(at::kDouble);
    model->materialize(at::kCPU);
    model->reset_parameters(1);
    model->layer->set_activation_checkpointing(checkpoints_layer);
    model->set_activation_checkpointing(checkpoints_all);
    const at::Tensor first = waves(0, shape).set_requires_grad(true);
    const at::Tensor second = waves(1, shape).set_requires_grad(true);
    const at::Tensor y = model(first);
    const at::Tensor z = model(second);
    (y * waves(2, shape)).sum().backward();
    (z * waves(3, shape)).sum().backward();
    std::map<std::string, at::Tensor> results = model->state_dict();
    for (const auto& [name, parameter] : model->named_parameters()) results["grad " + name] = parameter->local().grad();
    results["first"] = first.grad();
    results["second"] = second.grad();
    return results;
  };
  const auto plain = train(false, false);
  for (const auto& [layer, all] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    for (const auto& [name, tensor] : train(layer, all)) {
      EXPECT_TRUE(at::equal(tensor, plain.at(name))) << name << " " << layer << all;
    }
  }
}

TEST(RecomputedBuffers, Of_adopted_modules_are_those_of_one_run) {
  expect_one_run([] { return nn::BatchNorm1d(kSize); }, {4, kSize});
  expect_one_run([] { return nn::BatchNorm1d(nn::BatchNorm1dOptions(kSize).momentum(std::nullopt)); }, {4, kSize});
  expect_one_run(
      [] { return nn::InstanceNorm1d(nn::InstanceNorm1dOptions(kSize).affine(true).track_running_stats(true)); },
      {2, kSize, 5});
  expect_one_run([] { return std::make_shared<Drifting>(); }, {4, kSize});
}

}  // namespace
}  // namespace d9d::recomputed_buffers_test
