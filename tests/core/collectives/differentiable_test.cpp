// Compares each collective with the same arithmetic on one thread, where the ranks' tensors are separate leaves.
#include "d9d/core/collectives/differentiable.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/rng/element_random.h"

#include "tests/core/collectives/group.h"
#include "tests/support/compare.h"

namespace d9d::differentiable_test {
namespace {

using test::on_group;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kRanks = 3;

at::Tensor random_tensor(at::IntArrayRef shape, std::int64_t key) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  fill_normal(tensor, whole_window(tensor), {.key = static_cast<std::uint64_t>(key)}, 0.0, 1.0);
  return tensor;
}

using PerRank = std::vector<at::Tensor>;

struct Case {
  std::vector<std::vector<std::int64_t>> shapes;                                            // of each rank's input
  std::function<at::Tensor(const at::Tensor& x, const CommunicatorPtr& communicator)> run;  // on one rank
  std::function<PerRank(const PerRank& inputs)> model;                                      // all ranks, on one thread
};

// A loss with a different weight for each element of the result, and with curvature.
at::Tensor loss_of(const at::Tensor& y, std::int64_t rank) {
  return (y * y.detach() * random_tensor(y.sizes(), 100 + rank) + y).sum();
}

// Values and gradients of the collective must equal those of the model; the job's loss is the sum of the ranks' losses.
void expect_like_model(const Case& one) {
  PerRank inputs;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    inputs.push_back(random_tensor(one.shapes[static_cast<std::size_t>(rank)], rank).set_requires_grad(true));
  }
  const PerRank expected = one.model(inputs);
  at::Tensor total = at::zeros({}, at::kDouble);
  for (std::int64_t rank = 0; rank < kRanks; ++rank) total = total + loss_of(expected[rank], rank);
  total.backward();
  for (const bool checkpointed : {false, true}) {
    std::vector<std::pair<at::Tensor, at::Tensor>> results(kRanks);
    on_group(kRanks, [&](const CommunicatorPtr& group) {
      const std::int64_t rank = group->rank();
      // The leaf is deliberately not contiguous, and the collective must not change it.
      const at::Tensor leaf = inputs[rank].detach().t().contiguous().t().set_requires_grad(true);
      const auto body = [&](const at::Tensor& x) { return one.run(x, group); };
      const at::Tensor y = checkpointed ? checkpoint(body, leaf) : body(leaf);
      loss_of(y, rank).backward();
      test::require_equal(leaf.detach(), inputs[rank].detach());
      results[rank] = {y.detach(), leaf.grad()};
    });
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      test::expect_close(cat("y of rank ", rank), results[rank].first, expected[rank], test::tolerance("fp64"));
      test::expect_close(cat("gradient of rank ", rank), results[rank].second, inputs[rank].grad(),
                         test::tolerance("fp64"));
    }
  }
}

PerRank for_all(const at::Tensor& value) { return PerRank(kRanks, value); }

at::Tensor sum_of(const PerRank& inputs) { return at::stack(inputs).sum(0); }

TEST(AllGatherAlong, Equals_one_thread) {
  for (const std::int64_t dim : {0, 1, -1}) {
    expect_like_model({.shapes = {{2, 4}, {2, 4}, {2, 4}},
                       .run = [=](const auto& x, const auto& group) { return all_gather_along(x, dim, group); },
                       .model = [=](const PerRank& inputs) { return for_all(at::cat(inputs, dim)); }});
  }
}

TEST(ReduceScatterAlong, Equals_one_thread) {
  for (const std::int64_t dim : {0, 1, -2}) {
    expect_like_model({.shapes = {{6, 3}, {6, 3}, {6, 3}},
                       .run = [=](const auto& x, const auto& group) { return reduce_scatter_along(x, dim, group); },
                       .model = [=](const PerRank& inputs) { return sum_of(inputs).chunk(kRanks, dim); }});
  }
}

TEST(AllToAllAlong, Equals_one_thread) {
  for (const auto& [split_dim, concat_dim] : {std::pair{0, 1}, {1, 0}, {0, 0}, {-1, -1}}) {
    expect_like_model(
        {.shapes = {{6, 3}, {6, 3}, {6, 3}},
         .run = [=, split = split_dim, concat = concat_dim](
                    const auto& x, const auto& group) { return all_to_all_along(x, split, concat, group); },
         .model =
             [=, split = split_dim, concat = concat_dim](const PerRank& inputs) {
               PerRank outputs;
               for (std::int64_t to = 0; to < kRanks; ++to) {
                 PerRank parts;
                 for (const at::Tensor& input : inputs) parts.push_back(input.chunk(kRanks, split)[to]);
                 outputs.push_back(at::cat(parts, concat));
               }
               return outputs;
             }});
  }
}

TEST(AllToAllRows, Equals_one_thread) {
  const std::vector<std::vector<std::int64_t>> sent = {{1, 0, 2}, {0, 0, 0}, {3, 1, 1}};  // [from][to]
  expect_like_model({.shapes = {{3, 2}, {0, 2}, {5, 2}},
                     .run =
                         [&](const auto& x, const auto& group) {
                           std::vector<std::int64_t> received;
                           for (const auto& splits : sent) received.push_back(splits[group->rank()]);
                           return all_to_all_rows(x, received, sent[group->rank()], group);
                         },
                     .model =
                         [&](const PerRank& inputs) {
                           PerRank outputs;
                           for (std::int64_t to = 0; to < kRanks; ++to) {
                             PerRank parts;
                             for (std::int64_t from = 0; from < kRanks; ++from) {
                               parts.push_back(inputs[from].split_with_sizes(sent[from])[to]);
                             }
                             outputs.push_back(at::cat(parts));
                           }
                           return outputs;
                         }});
}

TEST(AllReduceBoth, Equals_one_thread) {
  expect_like_model({.shapes = {{2, 4}, {2, 4}, {2, 4}},
                     .run = [](const auto& x, const auto& group) { return all_reduce_both(x, group); },
                     .model = [](const PerRank& inputs) { return for_all(sum_of(inputs)); }});
}

// Its results are the same on all ranks and count once in the job's loss, as copies of one value do.
TEST(AllReduceForward, Sums_values_and_leaves_gradients) {
  on_group(2, [](const CommunicatorPtr& group) {
    const at::Tensor leaf = at::full({2}, group->rank() + 1.0, at::kDouble).set_requires_grad(true);
    const at::Tensor y = all_reduce_forward(leaf, group);
    test::require_equal(y.detach(), at::full({2}, 3.0, at::kDouble));
    test::require_equal(leaf.detach(), at::full({2}, group->rank() + 1.0, at::kDouble));
    (y * (group->rank() + 5.0)).sum().backward();
    test::require_equal(leaf.grad(), at::full({2}, group->rank() + 5.0, at::kDouble));
  });
}

TEST(AllReduceBackward, Leaves_values_and_sums_gradients) {
  on_group(2, [](const CommunicatorPtr& group) {
    const at::Tensor leaf = at::full({2}, group->rank() + 1.0, at::kDouble).set_requires_grad(true);
    const at::Tensor y = all_reduce_backward(leaf, group);
    test::require_equal(y.detach(), leaf.detach());
    (y * (group->rank() + 5.0)).sum().backward();
    test::require_equal(leaf.grad(), at::full({2}, 11.0, at::kDouble));
  });
}

TEST(DifferentiableCollectives, Have_gradients_of_gradients) {  // d2/dx2 of sum_j (sum_i x_i)^3 over 2 ranks
  on_group(2, [](const CommunicatorPtr& group) {
    const at::Tensor leaf = at::full({1}, 2.0, at::kDouble).set_requires_grad(true);
    const at::Tensor y = all_gather_along(leaf, 0, group).sum();
    const at::Tensor gradient = torch::autograd::grad({y * y * y}, {leaf}, {}, true, /*create_graph=*/true)[0];
    test::require_equal(gradient.detach(), at::full({1}, 2 * 3 * 16.0, at::kDouble));
    test::require_equal(torch::autograd::grad({gradient.sum()}, {leaf})[0],
                        at::full({1}, 2 * 2 * 6 * 4.0, at::kDouble));
  });
}

TEST(DifferentiableCollectives, Return_the_input_on_one_rank) {
  on_group(1, [](const CommunicatorPtr& group) {
    const at::Tensor x = at::ones({2, 2});
    for (const at::Tensor& y : {all_gather_along(x, 0, group), reduce_scatter_along(x, 1, group),
                                all_reduce_forward(x, group), all_reduce_backward(x, group), all_reduce_both(x, group),
                                all_to_all_along(x, 0, 1, group), all_to_all_rows(x, {2}, {2}, group)}) {
      D9D_ASSERT(y.is_same(x), "one rank needs nobody");
    }
  });
}

TEST(DifferentiableCollectives, Refuse_sizes_that_do_not_divide) {
  const auto on_two = [](const auto& body) {
    return [=] { on_group(2, [&](const CommunicatorPtr& group) { (void)body(group); }); };
  };
  EXPECT_THAT(on_two([](const auto& group) {
                return reduce_scatter_along(at::ones({4, 3}), 1, group);
              }),
              ThrowsMessage<ConfigError>(HasSubstr("expected dim 1 to be divisible by the 2 ranks of group 'all'")));
  EXPECT_THAT(on_two([](const auto& group) { return all_to_all_along(at::ones({3}), 0, 0, group); }),
              ThrowsMessage<ConfigError>(HasSubstr("got shape [3]")));
  EXPECT_THAT(on_two([](const auto& group) {
                return all_to_all_rows(at::ones({3}), {1, 1}, {1, 1}, group);
              }),
              ThrowsMessage<ConfigError>(HasSubstr("splits, the latter of all rows of [3]")));
  EXPECT_THAT(on_two([](const auto& group) { return all_gather_along(at::ones({}), 0, group); }),
              ThrowsMessage<ConfigError>(HasSubstr("expected a dim in [0, 0), got 0")));
  EXPECT_THAT(on_two([](const auto& group) { return all_gather_along(at::ones({group->rank()}), 0, group); }),
              ThrowsMessage<CommunicationError>(HasSubstr("expected the same operation")));
}

}  // namespace
}  // namespace d9d::differentiable_test
