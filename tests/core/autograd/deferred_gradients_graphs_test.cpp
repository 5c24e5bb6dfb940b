// Random graphs in a split backward, against a whole one.
#include <memory>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/autograd/deferred_gradients.h"

#include "tests/core/autograd/products.h"
#include "tests/support/compare.h"

namespace d9d::test::deferred_gradients_graphs_test {
namespace {

// A random graph over some weights: what each step computes from a value before it.
struct Step {
  int kind;
  std::size_t from, other;
  std::vector<std::size_t> weights;
};
constexpr int kOfOurs = 4;  // the first kinds use weights in Products alone, and not again

at::Tensor run_step(const Step& step, const std::vector<at::Tensor>& made, const std::vector<at::Tensor>& weights) {
  const at::Tensor &x = made[step.from], &y = made[step.other];
  const at::Tensor &w = weights[step.weights[0]], &v = weights[step.weights[1]];
  switch (step.kind) {
    case 0:
      return at::tanh(times(x, {w}));
    case 1:
      return at::tanh(times(x, {w, v}));
    case 2:
      return checkpoint([w, v](const at::Tensor& in) { return times(at::tanh(times(at::sin(in), {w})), {v}); }, x);
    case 3:
      return x + at::tanh(y);
    case 4:
      return at::tanh(x.mm(w));  // autograd's own product
    case 5:
      return at::tanh(times(x, {w * v}));  // no leaf
    case 6:
      return x * w.sum(0);
    default:
      return times(x, {w}) + v.sum(0).mul(y);
  }
}

class RandomGraph {
 public:
  explicit RandomGraph(std::uint32_t seed, int num_kinds) : random_(seed) {
    const std::size_t num_steps = 2 + draw(6);
    for (std::size_t i = 0; i < num_steps; ++i) {
      steps_.push_back({.kind = static_cast<int>(draw(static_cast<std::size_t>(num_kinds))),
                        .from = draw(i + 1),
                        .other = draw(i + 1),
                        .weights = {draw(kNumWeights), draw(kNumWeights)}});
    }
    for (std::size_t i = 0; i < kNumWeights; ++i) {
      weights.push_back(weight_of(static_cast<double>(i)).set_requires_grad(draw(5) > 0));
      owners.push_back(std::make_unique<Owner>(weights.back(), weights.back().requires_grad() && draw(2) == 0));
    }
  }

  [[nodiscard]] at::Tensor loss(const at::Tensor& x) const {
    std::vector<at::Tensor> made = {x};
    for (const Step& step : steps_) made.push_back(run_step(step, made, weights));
    at::Tensor sum = made.back().square().sum();
    for (std::size_t i = 1; i + 1 < made.size(); i += 2) sum = sum + made[i].mean();
    return sum;
  }
  std::size_t draw(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  std::vector<at::Tensor> weights;
  std::vector<std::unique_ptr<Owner>> owners;

 private:
  static constexpr std::size_t kNumWeights = 4;
  std::mt19937 random_;
  std::vector<Step> steps_;
};

// Gradients of the inputs and weights of microbatches, whose backwards are whole, or split, with W in the order of I or
// in any.
struct Gradients {
  std::vector<at::Tensor> of_inputs, of_weights;
  std::vector<int> num_arrivals;
};

enum class Order { kWhole, kInTurn, kAnyOrder };

Gradients gradients_of(std::uint32_t seed, int num_kinds, Order order) {
  RandomGraph graph(seed, num_kinds);
  constexpr std::size_t kNumMicrobatches = 3;
  Gradients result;
  DeferredGradients deferred(order == Order::kWhole ? std::vector<at::Tensor>() : graph.weights);
  std::vector<WeightGradients> waiting;
  const auto run_one = [&](std::size_t which) {
    WeightGradients one = std::move(waiting[which]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(which));
    one.run();
  };
  for (std::size_t i = 0; i < kNumMicrobatches; ++i) {
    const at::Tensor x = input_of(static_cast<double>(i)), loss = graph.loss(x);
    if (order == Order::kWhole) {
      loss.backward();
    } else {
      waiting.push_back(deferred.keep([&] { loss.backward(); }));
    }
    result.of_inputs.push_back(x.grad());
    if (order == Order::kAnyOrder && graph.draw(2) == 0) run_one(graph.draw(waiting.size()));
  }
  while (!waiting.empty()) run_one(order == Order::kInTurn ? 0 : graph.draw(waiting.size()));
  for (const auto& owner : graph.owners) {
    result.of_weights.push_back(owner->gradient().clone());
    result.num_arrivals.push_back(owner->num_arrivals);
    EXPECT_TRUE(owner->num_arrivals == 0 || at::equal(owner->at_arrival, owner->buffer));
  }
  return result;
}

TEST(DeferredGradientsOfRandomGraphs, Are_those_of_a_whole_backward_bit_for_bit) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Gradients whole = gradients_of(seed, kOfOurs, Order::kWhole);
    const Gradients split = gradients_of(seed, kOfOurs, Order::kInTurn);
    EXPECT_EQ(split.num_arrivals, whole.num_arrivals);
    for (std::size_t i = 0; i < whole.of_inputs.size(); ++i) {
      EXPECT_TRUE(at::equal(split.of_inputs[i], whole.of_inputs[i]));
    }
    for (std::size_t i = 0; i < whole.of_weights.size(); ++i) {
      EXPECT_TRUE(at::equal(split.of_weights[i], whole.of_weights[i])) << i;
    }
  }
}

// Also with operators that make weights' gradients at once, and weights' gradients in any order.
TEST(DeferredGradientsOfRandomGraphs, With_other_operators_are_those_of_a_whole_backward_but_for_rounding) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Gradients whole = gradients_of(seed, 8, Order::kWhole), split = gradients_of(seed, 8, Order::kAnyOrder);
    EXPECT_EQ(split.num_arrivals, whole.num_arrivals);
    for (std::size_t i = 0; i < whole.of_inputs.size(); ++i) {
      EXPECT_TRUE(at::equal(split.of_inputs[i], whole.of_inputs[i]));
    }
    for (std::size_t i = 0; i < whole.of_weights.size(); ++i) {
      expect_close(cat("weight ", i), split.of_weights[i], whole.of_weights[i], tolerance("fp64 repeated"), 1.0);
    }
  }
}

}  // namespace
}  // namespace d9d::test::deferred_gradients_graphs_test
