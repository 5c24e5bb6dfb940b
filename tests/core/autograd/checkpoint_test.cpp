#include "d9d/core/autograd/checkpoint.h"

#include <thread>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/rng/element_random.h"

namespace d9d::checkpoint_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor random_leaf(at::IntArrayRef shape, std::uint64_t key) {
  const at::Tensor leaf = at::empty(shape, at::kDouble);
  fill_normal(leaf, whole_window(leaf), {.key = key}, 0.0, 1.0);
  return leaf.set_requires_grad(true);
}

struct Gradients {
  at::Tensor x, w1, w2;
};

// d/d(x, w1, w2) of a two-layer network whose `body` is called through `call`.
template <class Call>
Gradients gradients_of(const Call& call) {
  const at::Tensor x = random_leaf({5, 4}, 1);
  const at::Tensor w1 = random_leaf({6, 4}, 2);
  const at::Tensor w2 = random_leaf({4, 6}, 3);
  const auto body = [&](const at::Tensor& input) { return at::linear(at::tanh(at::linear(input, w1)), w2).pow(2); };
  call(body, x).sum().backward();
  return {x.grad(), w1.grad(), w2.grad()};
}

TEST(Checkpoint, Gradients_equal_those_without) {
  const Gradients plain = gradients_of([](const auto& body, const at::Tensor& x) { return body(x); });
  const Gradients checkpointed =
      gradients_of([](const auto& body, const at::Tensor& x) { return checkpoint(body, x); });
  EXPECT_TRUE(at::equal(plain.x, checkpointed.x));
  EXPECT_TRUE(at::equal(plain.w1, checkpointed.w1));
  EXPECT_TRUE(at::equal(plain.w2, checkpointed.w2));
}

TEST(Checkpoint, Nested_checkpoints_equal_none) {
  const Gradients plain = gradients_of([](const auto& body, const at::Tensor& x) { return body(body(x)); });
  const Gradients nested = gradients_of([](const auto& body, const at::Tensor& x) {
    return checkpoint([&](const at::Tensor& input) { return checkpoint(body, checkpoint(body, input)); }, x);
  });
  EXPECT_TRUE(at::equal(plain.x, nested.x));
  EXPECT_TRUE(at::equal(plain.w2, nested.w2));
}

TEST(Checkpoint, Recomputes_once_and_only_in_backward) {
  int num_runs = 0;
  int num_recomputations = 0;
  const at::Tensor x = random_leaf({3}, 1);
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& input) {
        ++num_runs;
        num_recomputations += is_recomputing() ? 1 : 0;
        return at::exp(at::sin(input) * input);
      },
      x);
  EXPECT_EQ(num_runs, 1);
  y.sum().backward();
  EXPECT_EQ(num_runs, 2);
  EXPECT_EQ(num_recomputations, 1);
  EXPECT_FALSE(is_recomputing());
}

TEST(Checkpoint, Replayed_values_are_those_of_the_first_run) {
  int counter = 0;
  std::vector<int> seen;
  const at::Tensor x = random_leaf({3}, 1);
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& input) {
        seen.push_back(replayed([&] { return ++counter; }));
        seen.push_back(replayed([&] { return ++counter; }));
        return at::exp(input);
      },
      x);
  y.sum().backward();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 1, 2}));
}

TEST(Checkpoint, Replays_a_value_whose_computation_replays_others) {
  for (const bool is_nested : {false, true}) {
    int counter = 0;
    std::vector<int> seen;
    const auto body = [&](const at::Tensor& input) {
      seen.push_back(replayed([&] {
        const int first = replayed([&] { return ++counter; });
        return 10 * first + replayed([&] { return replayed([&] { return ++counter; }); });
      }));
      seen.push_back(replayed([&] { return ++counter; }));
      return at::exp(input);
    };
    const at::Tensor x = random_leaf({3}, 1);
    const auto outer = [&](const at::Tensor& input) { return is_nested ? checkpoint(body, input) : body(input); };
    checkpoint(outer, x).sum().backward();
    const std::vector<int> first_run = {12, 3};
    ASSERT_EQ(seen.size() % 2, 0U);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], first_run[i % 2]) << is_nested << " " << i;
    EXPECT_GE(seen.size(), 4U);
    EXPECT_EQ(counter, 3);
  }
}

// A tree of checkpoints: each body replays a number, runs two nested checkpoints, and replays another number.
at::Tensor nested(int depth, int& counter, const at::Tensor& x, bool is_checkpointed) {
  const auto body = [depth, &counter, is_checkpointed](const at::Tensor& input) {
    const int first = replayed([&] { return ++counter; });
    at::Tensor y = at::sin(input * first);
    for (int i = 0; i < 2 && depth > 1; ++i) y = nested(depth - 1, counter, y, is_checkpointed);
    const int last = replayed([&] { return ++counter; });
    return at::sin(y * last);
  };
  return is_checkpointed ? checkpoint(body, x) : body(x);
}

TEST(Checkpoint, Replays_values_of_checkpoints_inside_of_checkpoints) {
  for (const int depth : {1, 2, 3, 4}) {
    int plain_counter = 0, counter = 0;
    const at::Tensor plain_x = random_leaf({3}, 1), x = random_leaf({3}, 1);
    nested(depth, plain_counter, plain_x, /*is_checkpointed=*/false).sum().backward();
    nested(depth, counter, x, /*is_checkpointed=*/true).sum().backward();
    EXPECT_EQ(counter, plain_counter) << "drawn again at depth " << depth;
    EXPECT_TRUE(at::equal(x.grad(), plain_x.grad())) << depth;
  }
}

TEST(Checkpoint, Refuses_a_recomputation_that_replays_more) {
  const at::Tensor x = random_leaf({4}, 1);
  const at::Tensor y = checkpoint(
      [](const at::Tensor& input) {
        return at::exp(is_recomputing() ? input * replayed([] { return 2; }) : input * 2);
      },
      x);
  EXPECT_THROW(y.sum().backward(), StateError);
}

TEST(Checkpoint, Refuses_a_recomputation_that_replays_another_type) {
  const at::Tensor y = checkpoint(
      [](const at::Tensor& input) {
        return at::exp(is_recomputing() ? input * replayed([] { return 2.0; }) : input * replayed([] { return 2; }));
      },
      random_leaf({4}, 1));
  EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<StateError>(HasSubstr("values of the same types")));
}

TEST(Checkpoint, Takes_tensors_inside_trees_and_other_arguments) {
  const at::Tensor a = random_leaf({3}, 1);
  const at::Tensor b = random_leaf({3}, 2);
  const auto body = [](const std::vector<at::Tensor>& inputs, double factor) {
    return (inputs[0] * inputs[1]).exp() * factor;
  };
  checkpoint(body, std::vector<at::Tensor>{a, b}, 2.0).sum().backward();
  const at::Tensor expected = b * (a * b).exp() * 2.0;
  EXPECT_TRUE(at::allclose(a.grad(), expected.detach(), 1e-14, 1e-14));
}

TEST(Checkpoint, Without_gradients_runs_the_body_alone) {
  const at::NoGradGuard no_grad;
  const at::Tensor y = checkpoint([](const at::Tensor& x) { return x + 1; }, at::zeros({2}));
  EXPECT_TRUE(at::equal(y, at::ones({2})));
}

TEST(Checkpoint, Refuses_a_body_that_saves_other_shapes_the_second_time) {
  const at::Tensor x = random_leaf({4}, 1);
  const at::Tensor y =
      checkpoint([](const at::Tensor& input) { return at::exp(is_recomputing() ? input.narrow(0, 0, 2) : input); }, x);
  EXPECT_THROW(y.sum().backward(), StateError);
}

TEST(Checkpoint, Refuses_in_place_changes_of_saved_tensors) {
  const at::Tensor x = random_leaf({4}, 1);
  const at::Tensor y = checkpoint(
      [](const at::Tensor& input) {
        const at::Tensor doubled = input * 2;
        const at::Tensor out = doubled * doubled;  // saves `doubled` ...
        doubled.add_(1);                           // ... and changes it
        return out.exp();
      },
      x);
  EXPECT_THROW(y.sum().backward(), StateError);
}

TEST(Checkpoint, Refuses_a_recomputation_that_draws_other_random_numbers) {
  using Draw = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Draw>> draws = {
      {"aten::dropout", [](const at::Tensor& x) { return at::dropout(x, 0.5, /*train=*/true); }},
      {"aten::rand", [](const at::Tensor& x) { return x * at::rand(x.sizes(), x.options()); }},
      {"aten::bernoulli", [](const at::Tensor& x) { return x * at::bernoulli(at::full_like(x, 0.5)); }},
      {"aten::bernoulli_", [own = at::detail::createCPUGenerator(7)](
                               const at::Tensor& x) { return x * at::empty_like(x).bernoulli_(0.5, own); }},
      {"aten::normal_", [](const at::Tensor& x) { return x * at::empty_like(x).normal_(); }},
      {"aten::randperm", [](const at::Tensor& x) { return x.index({at::randperm(x.size(0))}); }},
  };
  for (const auto& [name, draw] : draws) {
    SCOPED_TRACE(name);
    for (const bool is_nested : {false, true}) {
      const auto body = [&](const at::Tensor& input) { return at::sin(draw(at::sin(input))); };
      const at::Tensor y =
          checkpoint([&](const at::Tensor& input) { return is_nested ? checkpoint(body, input) : body(input); },
                     random_leaf({4}, 1));
      EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<StateError>(HasSubstr(name)));
    }
  }
}

TEST(Checkpoint, Accepts_operators_that_may_draw_and_do_not) {
  const auto body = [](const at::Tensor& input) {
    const at::Tensor heads = input.view({1, 1, 2, 2});
    const at::Tensor attended = at::scaled_dot_product_attention(heads, heads, heads, {}, /*dropout_p=*/0.0);
    return at::sin(at::dropout(at::dropout(attended, 0.0, /*train=*/true), 0.5, /*train=*/false));
  };
  const at::Tensor plain = random_leaf({4}, 1), x = random_leaf({4}, 1);
  body(plain).sum().backward();
  checkpoint(body, x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), plain.grad()));
}

TEST(Checkpoint, Accepts_random_numbers_that_are_replayed_or_of_other_threads) {
  const at::Generator own = at::detail::createCPUGenerator(7);
  const at::Tensor x = random_leaf({4}, 1);
  at::Tensor mask;
  const auto body = [&](const at::Tensor& input) {
    std::thread([] { (void)at::rand({1}); }).join();  // as a loader's
    mask = replayed([&] { return at::bernoulli(at::full_like(input, 0.5), own); });
    return at::sin(input) * mask;
  };
  checkpoint(body, x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::cos(x.detach()) * mask));
}

}  // namespace
}  // namespace d9d::checkpoint_test
