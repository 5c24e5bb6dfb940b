// Checkpoints that keep results and offload what a recomputation starts from.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/rng/element_random.h"

namespace d9d::kept_results_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local int num_computed = 0;

// exp(x), dear to compute.
struct DearExp : torch::autograd::Function<DearExp> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const variable_list kept = kept_result([&] {
      ++num_computed;
      return variable_list{at::exp(x), at::zeros({1}, x.options())};
    });
    context->save_for_backward({kept[0]});
    return kept[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {grads[0] * context->get_saved_variables()[0]};
  }
};

at::Tensor leaf(std::uint64_t key) {
  const at::Tensor x = at::empty({5, 4}, at::kDouble);
  fill_normal(x, whole_window(x), {.key = key}, 0.0, 0.3);
  return x.set_requires_grad(true);
}

at::Tensor layer(const at::Tensor& x) { return at::sin(DearExp::apply(at::tanh(x)) * x) + x; }

// The gradient of a few layers, each called through `call`; sets `computed` to the number of results computed.
template <class Call>
at::Tensor gradient_of(const Call& call, int& computed) {
  num_computed = 0;
  const at::Tensor x = leaf(1);
  at::Tensor y = x;
  for (int i = 0; i < 9; ++i) y = call(y);  // more than are kept in flight
  y.sum().backward();
  computed = num_computed;
  return x.grad();
}

const CheckpointOptions kKeeps{.keeps_results = true};
const CheckpointOptions kOffloads{.offloads = true};
const CheckpointOptions kBoth{.keeps_results = true, .offloads = true};

TEST(KeptResults, Are_not_computed_again) {
  int plain = 0, again = 0, kept = 0, both = 0;
  const at::Tensor expected = gradient_of([](const at::Tensor& x) { return layer(x); }, plain);
  const auto with = [](const CheckpointOptions& options) {
    return [options](const at::Tensor& x) { return checkpoint_with(options, layer, x); };
  };
  EXPECT_TRUE(at::equal(gradient_of(with({}), again), expected));
  EXPECT_TRUE(at::equal(gradient_of(with(kKeeps), kept), expected));
  EXPECT_TRUE(at::equal(gradient_of(with(kBoth), both), expected));
  EXPECT_EQ(plain, 9);
  EXPECT_EQ(again, 18);
  EXPECT_EQ(kept, 9);
  EXPECT_EQ(both, 9);
}

TEST(KeptResults, Inputs_that_wait_in_host_memory_change_nothing) {
  int computed = 0;
  const at::Tensor expected = gradient_of([](const at::Tensor& x) { return layer(x); }, computed);
  EXPECT_TRUE(at::equal(gradient_of([](const at::Tensor& x) { return checkpoint_with(kOffloads, layer, x); }, computed),
                        expected));
}

// Of an inner checkpoint: only if the outer one keeps results as well.
TEST(KeptResults, Of_nested_checkpoints) {
  const auto nested = [](const CheckpointOptions& outer, const CheckpointOptions& inner) {
    return [outer, inner](const at::Tensor& x) {
      return checkpoint_with(
          outer, [inner](const at::Tensor& input) { return layer(checkpoint_with(inner, layer, input)); }, x);
    };
  };
  int computed = 0;
  const at::Tensor expected = gradient_of([](const at::Tensor& x) { return layer(layer(x)); }, computed);
  EXPECT_TRUE(at::equal(gradient_of(nested(kBoth, kBoth), computed), expected));
  EXPECT_EQ(computed, 18);
  EXPECT_TRUE(at::equal(gradient_of(nested(kBoth, {}), computed), expected));
  EXPECT_EQ(computed, 18 + 18);  // the inner one's in the outer recomputation and in its own
  EXPECT_TRUE(at::equal(gradient_of(nested({}, kBoth), computed), expected));
  EXPECT_EQ(computed, 18 + 18 + 9);
}

// Inner checkpoints that are recomputed with the outer one, but whose own backward never comes.
TEST(KeptResults, Are_freed_after_a_backward_of_a_part_of_the_graph) {
  const auto alive = std::make_shared<int>();
  at::Tensor last_input;
  {
    const auto inner = [alive](const at::Tensor& input) { return layer(input); };
    const at::Tensor y = checkpoint_with(
        kBoth,
        [&](const at::Tensor& input) {
          at::Tensor x = input;
          for (int i = 0; i < 9; ++i) x = checkpoint_with(kKeeps, inner, last_input = x * 1.0);
          return x;
        },
        leaf(1) * 1.0);
    (void)torch::autograd::grad({y.sum()}, {last_input});
  }
  last_input.reset();
  EXPECT_EQ(alive.use_count(), 1);
}

// Microbatches of a pipeline: the first forward is the first to have its backward.
TEST(KeptResults, Of_forwards_that_interleave_with_backwards) {
  std::vector<at::Tensor> leaves, outputs;
  for (std::uint64_t i = 0; i < 3; ++i) {
    leaves.push_back(leaf(i));
    at::Tensor y = leaves.back();
    for (int k = 0; k < 5; ++k) y = checkpoint_with(kBoth, layer, y);
    outputs.push_back(y);
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    outputs[i].sum().backward();
    const at::Tensor alone = leaf(i);
    at::Tensor y = alone;
    for (int k = 0; k < 5; ++k) y = layer(y);
    y.sum().backward();
    EXPECT_TRUE(at::equal(leaves[i].grad(), alone.grad())) << i;
  }
}

TEST(KeptResults, That_the_body_modifies_are_refused) {
  for (const CheckpointOptions& options : {kKeeps, kBoth}) {
    const at::Tensor x = leaf(1);
    at::Tensor y = x * 1.0;
    for (int i = 0; i < 9; ++i) {
      y = checkpoint_with(
          options, [](const at::Tensor& input) { return at::tanh(DearExp::apply(input).mul_(2.0)); }, y);
    }
    EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<std::exception>(HasSubstr("modified in place")));
  }
}

// Each part has a checkpoint, and a recomputation of the enclosing one computes none of them.
TEST(CheckpointEach, Computes_each_part_twice) {
  int num_runs = 0;
  const auto body = [&](const at::Tensor& part) {
    ++num_runs;
    return layer(part);
  };
  const at::Tensor x = leaf(1);
  const at::Tensor y =
      checkpoint([&](const at::Tensor& input) { return at::cat(checkpoint_each(body, at::tanh(input).split(2))); }, x);
  EXPECT_EQ(num_runs, 3);
  y.sum().backward();
  EXPECT_EQ(num_runs, 6);
  const at::Tensor alone = leaf(1);
  layer(at::tanh(alone)).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), alone.grad()));
}

}  // namespace
}  // namespace d9d::kept_results_test
