// Sharded parameters with replicas, whose units are reduced as often as a microbatch uses them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include "tests/parallelism/one_rank.h"

namespace d9d::test::fsdp_replicas_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Recurrent : public Module {
 public:
  at::Tensor forward(const at::Tensor& x) const {
    at::Tensor state = at::tanh(first(x));
    for (int i = 0; i < 2; ++i) state = at::tanh(again(state));
    return last(state);
  }

  const ModulePtr<Linear> first = register_module<Linear>("first", LinearConfig{4, 5});
  const ModulePtr<Linear> again = register_module<Linear>("again", LinearConfig{5, 5});
  const ModulePtr<Linear> last = register_module<Linear>("last", LinearConfig{5, 3});
  const ModulePtr<Linear> aside = register_module<Linear>("aside", LinearConfig{4, 3});
};

struct Case {
  std::int64_t num_replicas = 2;
  int num_microbatches = 1;
  bool runs_pairs = false;  // two forwards before one backward
  bool uses_aside = false;  // in the first microbatch and every second one after it
  FsdpConfig fsdp = {};
};

// The input of a rank's microbatch; all inputs differ.
at::Tensor input(std::int64_t rank, int microbatch) {
  return values({2, 4}, static_cast<double>(10 * rank + microbatch));
}

at::Tensor loss_of(const ModulePtr<Recurrent>& model, const Case& test, std::int64_t rank, int microbatch) {
  const at::Tensor x = input(rank, microbatch);
  at::Tensor loss;
  if (test.runs_pairs) {
    const at::Tensor chosen = model(x), rejected = model(-x.cos());
    loss = at::sigmoid(chosen - rejected).log().sum();
  } else {
    loss = model(x).square().sum();
  }
  return test.uses_aside && microbatch % 2 == 0 ? loss + model->aside(x).square().sum() : loss;
}

struct Sharded {
  Sharded(World& world, const Case& test) : runtime(std::make_shared<FsdpRuntime>(test.fsdp)) {
    const DeviceMesh mesh("dense", {{"replicas", test.num_replicas}, {"shards", 2}}, borrowed(world));
    model->to(at::kDouble);
    for (const auto& [name, child] : model->named_children()) {
      parallelize_fsdp(runtime, {.name = name,
                                 .modules = {child},
                                 .axes = {{.mesh = mesh, .shard_axis = "shards", .replicate_axes = {"replicas"}}}});
    }
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/5);
  }
  const ModulePtr<Recurrent> model = make_module<Recurrent>();
  const std::shared_ptr<FsdpRuntime> runtime;
};

// The same computation on one rank.
ModulePtr<Recurrent> summed_gradients(const Case& test) {
  const auto model = initialized(make_module<Recurrent>());
  for (std::int64_t rank = 0; rank < 2 * test.num_replicas; ++rank) {
    for (int i = 0; i < test.num_microbatches; ++i) loss_of(model, test, rank, i).backward();
  }
  return model;
}

void expect_gradients_of_one_rank(const Case& test) {
  const auto expected = summed_gradients(test);
  run_ranks(RankBackend::kThreads, 2 * test.num_replicas, [&](World& world) {
    const Sharded sharded(world, test);
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < test.num_microbatches; ++i) {
        sharded.runtime->begin_microbatch(/*is_last=*/i + 1 == test.num_microbatches);
        loss_of(sharded.model, test, world.rank(), i).backward();
        sharded.runtime->end_microbatch();
      }
      sharded.runtime->finish();
      const auto theirs = expected->named_parameters();
      const auto ours = sharded.model->named_parameters();
      for (std::size_t i = 0; i < ours.size(); ++i) {
        const Parameter& parameter = *ours[i].second;
        ASSERT_TRUE(parameter.stored().grad().defined()) << ours[i].first;
        at::Tensor whole = theirs[i].second->local().grad();
        if (!whole.defined()) whole = at::zeros_like(theirs[i].second->local());  // no gradient: zeros
        const FlatRange range = flat_range(whole.numel(), parameter.mesh(), parameter.placements());
        expect_close(ours[i].first, parameter.stored().grad(),
                     whole.reshape({-1}).narrow(0, range.begin, range.numel()), tolerance("fp64"),
                     largest_magnitude(whole));
      }
      sharded.runtime->clear();
    }
  });
}

TEST(FsdpReplicas, Sum_a_unit_that_a_forward_calls_twice_once) {
  for (const std::int64_t num_replicas : {2, 3}) {
    for (const int num_microbatches : {1, 3}) {
      expect_gradients_of_one_rank({.num_replicas = num_replicas, .num_microbatches = num_microbatches});
    }
  }
}

TEST(FsdpReplicas, Sum_units_of_two_forwards_before_one_backward_once) {
  for (const std::int64_t num_replicas : {2, 3}) {
    for (const int num_microbatches : {1, 3}) {
      expect_gradients_of_one_rank(
          {.num_replicas = num_replicas, .num_microbatches = num_microbatches, .runs_pairs = true});
    }
  }
}

TEST(FsdpReplicas, Sum_alike_however_and_whenever_shards_are_reduced) {
  for (const ExchangeMethod method : {ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine}) {
    for (const bool on_last : {false, true}) {
      for (const bool runs_pairs : {false, true}) {
        expect_gradients_of_one_rank({.num_microbatches = 2,
                                      .runs_pairs = runs_pairs,
                                      .fsdp = {.reduce_on_last_microbatch = on_last, .reduce = method}});
      }
    }
  }
}

TEST(FsdpReplicas, Sum_a_unit_that_the_last_microbatch_leaves_out) {
  for (const bool on_last : {false, true}) {
    for (const int num_microbatches : {2, 3, 4}) {
      expect_gradients_of_one_rank(
          {.num_microbatches = num_microbatches, .uses_aside = true, .fsdp = {.reduce_on_last_microbatch = on_last}});
    }
  }
}

TEST(FsdpReplicas, Refuse_a_microbatch_after_the_last_one_of_a_step) {
  const Case test;
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const Sharded sharded(world, test);
    const auto run = [&](bool is_last) {
      sharded.runtime->begin_microbatch(is_last);
      sharded.model(input(world.rank(), 0)).sum().backward();
      sharded.runtime->end_microbatch();
    };
    run(/*is_last=*/true);
    EXPECT_THAT([&] { run(/*is_last=*/false); },
                ThrowsMessage<StateError>(HasSubstr("expected no microbatch after the last one of a step")));
  });
}

// Whatever a graph still needs must live as long as the graph.
TEST(FsdpReplicas, Go_backward_when_the_model_has_gone) {
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    std::optional<Sharded> sharded(std::in_place, world, Case{});
    sharded->runtime->begin_microbatch(/*is_last=*/true);
    const at::Tensor x = input(world.rank(), 0).requires_grad_();
    const at::Tensor loss = sharded->model(x).sum();
    sharded.reset();
    loss.backward();
    EXPECT_TRUE(x.grad().defined());
  });
}

}  // namespace
}  // namespace d9d::test::fsdp_replicas_test
