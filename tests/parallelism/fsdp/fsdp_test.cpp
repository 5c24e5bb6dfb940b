#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include "tests/support/forwarding_communicator.h"
#include "tests/support/ranks.h"

namespace d9d::test::fsdp_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;
using ::testing::ThrowsMessage;

class Stack : public Module {
 public:
  at::Tensor forward(const at::Tensor& x) const { return third(second(at::tanh(first(x)))); }

  const ModulePtr<Linear> first = register_module<Linear>("first", LinearConfig{4, 5});
  const ModulePtr<Linear> second = register_module<Linear>("second", LinearConfig{5, 5});
  const ModulePtr<Linear> third = register_module<Linear>("third", LinearConfig{5, 3});
};

struct Sharded {
  explicit Sharded(World& world, const FsdpConfig& config = {})
      : runtime(std::make_shared<FsdpRuntime>(config)),
        axes{{.mesh = DeviceMesh("dense", {{"dp", world.size()}}, borrowed(world)), .shard_axis = "dp"}} {
    model->to(at::kDouble);
  }
  Sharded& shard() {
    for (const auto& [name, child] : model->named_children()) {
      parallelize_fsdp(runtime, {.name = name, .modules = {child}, .axes = axes});
    }
    return *this;
  }
  Sharded& fill() {
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/1);
    return *this;
  }
  void run_microbatch(const at::Tensor& x) {
    runtime->begin_microbatch(/*is_last=*/true);
    model(x).sum().backward();
    runtime->end_microbatch();
  }

  ModulePtr<Stack> model = make_module<Stack>();
  std::shared_ptr<FsdpRuntime> runtime;
  std::vector<FsdpAxes> axes;
};

at::Tensor input() { return at::arange(8, at::kDouble).view({2, 4}) / 8; }

void on_two_ranks(const std::function<void(World&)>& body) { run_ranks(RankBackend::kThreads, 2, body); }

TEST(Fsdp, Keeps_a_slice_a_rank_and_says_how_parameters_lie) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.shard().fill();
    std::int64_t stored = 0;
    for (const auto& [name, parameter] : sharded.model->named_parameters()) {
      EXPECT_TRUE(has_flat_shard(parameter->placements())) << name;
      EXPECT_TRUE(has_flat_shard(parameter->gradient_placements())) << name;
      stored += parameter->stored().numel();
    }
    EXPECT_LE(stored, 4 * 5 + 5 * 5 + 5 * 3);
    const at::Tensor total = at::full({}, stored, at::kLong);
    world.communicator(group_of(world, "all"))->all_reduce(total, ReduceOp::kSum).wait();
    EXPECT_EQ(total.item<std::int64_t>(), 4 * 5 + 5 * 5 + 5 * 3);
  });
}

// With the alignment of flat groups, so that no padding stands between the weights.
class BiasedPair : public Module {
 public:
  at::Tensor forward(const at::Tensor& x) const { return linears_of(x, {first, second})[1]; }

  const ModulePtr<Linear> first = register_module<Linear>("first", LinearConfig{4, 64, true});
  const ModulePtr<Linear> second = register_module<Linear>("second", LinearConfig{4, 32, true});
};

TEST(Fsdp, Keeps_weights_of_linears_with_biases_adjacent) {
  on_two_ranks([](World& world) {
    const auto pair = make_module<BiasedPair>();
    const auto runtime = std::make_shared<FsdpRuntime>(FsdpConfig{});
    const DeviceMesh mesh("dense", {{"dp", world.size()}}, borrowed(world));
    parallelize_fsdp(runtime,
                     {.name = "pair", .modules = {pair.shared()}, .axes = {{.mesh = mesh, .shard_axis = "dp"}}});
    pair->materialize(at::kCPU);
    pair->reset_parameters(/*base_seed=*/1);
    runtime->begin_microbatch(/*is_last=*/true);
    (void)pair(input().to(at::kFloat));  // gathers, and as the last unit stays gathered
    const at::Tensor& weight = pair->first->weight->local();
    EXPECT_EQ(pair->second->weight->local().const_data_ptr<float>(), weight.const_data_ptr<float>() + weight.numel());
    runtime->end_microbatch();
  });
}

// One gather for forward and one for backward of each unit, except the last, which stays gathered in between; one
// reduction each.
TEST(Fsdp, Gathers_twice_and_reduces_once_a_unit_and_microbatch) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.shard().fill();
    for (int i = 0; i < 3; ++i) sharded.run_microbatch(input());
    EXPECT_EQ(sharded.runtime->num_gathers(), 3 * (2 + 2 + 1));
    EXPECT_EQ(sharded.runtime->num_reductions(), 3 * 3);
  });
}

TEST(Fsdp, Gathers_all_again_when_it_always_reshards) {
  on_two_ranks([](World& world) {
    Sharded sharded(world, {.reshard_after_forward = ReshardAfterForward::kAlways});
    sharded.shard().fill();
    sharded.run_microbatch(input());
    EXPECT_EQ(sharded.runtime->num_gathers(), 2 * 3);
  });
}

TEST(Fsdp, Gathers_once_a_step_when_it_never_reshards) {
  on_two_ranks([](World& world) {
    Sharded sharded(world, {.reshard_after_forward = ReshardAfterForward::kNever});
    sharded.shard().fill();
    for (int i = 0; i < 3; ++i) sharded.run_microbatch(input());
    EXPECT_EQ(sharded.runtime->num_gathers(), 3);
    sharded.runtime->finish();
    sharded.run_microbatch(input());
    EXPECT_EQ(sharded.runtime->num_gathers(), 6);
  });
}

TEST(Fsdp, Sums_in_the_dtype_of_the_loop_unless_it_names_one_and_keeps_it_while_memory_is_held) {
  on_two_ranks([](World& world) {
    for (const std::optional<Dtype> own : {std::optional<Dtype>(), std::optional(Dtype::kFloat32)}) {
      Sharded sharded(world, {.gradient_dtype = own});
      sharded.shard().fill();
      FsdpRuntime& runtime = *sharded.runtime;
      for (const Dtype of_loop : {Dtype::kBFloat16, Dtype::kFloat64}) {
        runtime.set_gradient_dtype(of_loop);
        sharded.run_microbatch(input());
        runtime.finish();
        for (const auto& [name, parameter] : sharded.model->named_parameters()) {
          EXPECT_EQ(parameter->stored().grad().scalar_type(), to_scalar_type(own.value_or(of_loop))) << name;
        }
        runtime.clear();
        if (!own) {
          EXPECT_THAT([&] { runtime.set_gradient_dtype(Dtype::kFloat32); },
                      ThrowsMessage<StateError>(HasSubstr("Call close() first")));
        }
        runtime.close();
      }
    }
  });
}

TEST(Fsdp, Has_no_gradient_buffer_for_frozen_parameters) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.model->second->set_requires_grad(false);
    sharded.shard().fill();
    sharded.run_microbatch(input());
    sharded.runtime->finish();
    EXPECT_EQ(sharded.runtime->num_reductions(), 2);
    for (const auto& [name, parameter] : sharded.model->named_parameters()) {
      EXPECT_EQ(parameter->stored().grad().defined(), parameter->requires_grad()) << name;
    }
  });
}

TEST(Fsdp, Says_why_a_parameter_cannot_be_used_outside_its_unit) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.shard().fill();
    EXPECT_THAT([&] { (void)(sharded.model->first->weight->local() + 1); },
                ThrowsMessage<c10::Error>(HasSubstr("was used while its unit is not gathered")));
  });
}

// With either exchange method, the next forward uses everything that is written between steps.
TEST(Fsdp, Sees_what_is_written_between_steps) {
  for (const ExchangeMethod method : {ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine}) {
    on_two_ranks([&](World& world) {
      Sharded sharded(world, {.gather = method, .reduce = method});
      sharded.shard().fill();
      const auto evaluate = [&] {
        const at::NoGradGuard no_grad;
        return sharded.model(input()).abs().sum().item<double>();
      };
      const auto scale = [&](double factor) {
        const at::NoGradGuard no_grad;
        for (const auto& [name, parameter] : sharded.model->named_parameters()) parameter->stored().mul_(factor);
      };
      for (int step = 0; step < 5; ++step) {
        sharded.run_microbatch(input());
        sharded.runtime->finish();
        EXPECT_GT(evaluate(), 0);  // before the optimiser's step
        scale(0.0);
        EXPECT_EQ(evaluate(), 0);  // after the optimiser's step
        sharded.model->reset_parameters(static_cast<std::uint64_t>(step));
        EXPECT_GT(evaluate(), 0);
        scale(0.0);
        const at::Tensor x = input();
        sharded.runtime->begin_microbatch(/*is_last=*/true);
        const at::Tensor y = sharded.model(x);
        EXPECT_EQ(y.abs().sum().item<double>(), 0);
        y.sum().backward();
        sharded.runtime->end_microbatch();
        sharded.runtime->finish();
        sharded.runtime->clear();
        sharded.model->reset_parameters(static_cast<std::uint64_t>(step));
        if (step == 2) sharded.runtime->close();
      }
    });
  }
}

struct Biased : Module {
  at::Tensor forward(const at::Tensor& x) const { return linear(x); }
  const ModulePtr<Linear> linear = register_module<Linear>("linear", LinearConfig{4, 5, true});
};

// Of a bias that one rank keeps whole, local() has the size of stored(), and no memory between steps.
TEST(Fsdp, Rounds_parameters_that_are_kept_in_another_dtype_itself) {
  on_two_ranks([](World& world) {
    const auto model = make_module<Biased>();
    model->to(at::kFloat);
    keep_parameters_in(model.shared(), at::kDouble);
    const FsdpAxes axes{.mesh = DeviceMesh("dense", {{"dp", world.size()}}, borrowed(world)), .shard_axis = "dp"};
    parallelize_fsdp(std::make_shared<FsdpRuntime>(FsdpConfig{}),
                     {.name = "linear", .modules = {model->linear.shared()}, .axes = {axes}});
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/1);
    ASSERT_TRUE(at::GradMode::is_enabled());
    EXPECT_NO_THROW(round_parameters(*model));
    const at::NoGradGuard no_grad;
    EXPECT_NE(model(input().to(at::kFloat)).abs().sum().item<float>(), 0);
    for (const auto& [name, parameter] : model->named_parameters()) parameter->stored().zero_();
    EXPECT_EQ(model(input().to(at::kFloat)).abs().sum().item<float>(), 0);
  });
}

TEST(Fsdp, Goes_on_with_copied_slices_after_an_exception) {
  on_two_ranks([](World& world) {
    Sharded sharded(world, {.gather = ExchangeMethod::kCopyEngine, .reduce = ExchangeMethod::kCopyEngine});
    sharded.shard().fill();
    for (int i = 0; i < 3; ++i) {
      sharded.runtime->begin_microbatch(/*is_last=*/true);
      EXPECT_THAT([&] { (void)sharded.model(at::ones({2, 7}, at::kDouble)); }, Throws<ConfigError>());
      sharded.runtime->abandon();
      world.communicator(group_of(world, "all"))->barrier();  // the other rank may still copy
      sharded.model->reset_parameters(static_cast<std::uint64_t>(i));
      sharded.run_microbatch(input());
      sharded.runtime->finish();
      sharded.runtime->clear();
    }
    Sharded fresh(world);
    fresh.shard().fill();
    fresh.model->reset_parameters(2);
    for (Sharded* each : {&sharded, &fresh}) {
      each->run_microbatch(input());
      each->runtime->finish();
    }
    EXPECT_TRUE(at::equal(sharded.model->first->weight->stored().grad(), fresh.model->first->weight->stored().grad()));
  });
}

TEST(Fsdp, Evaluates_between_steps) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.shard().fill();
    sharded.run_microbatch(input());
    const at::Tensor expected = [&] {
      const at::NoGradGuard no_grad;
      return sharded.model(input());
    }();
    sharded.run_microbatch(input());
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(sharded.model(input()), expected));
  });
}

// Records the number of gathers when the module's own forward begins.
struct GathersSoFar : ModuleHook {
  explicit GathersSoFar(const FsdpRuntime& owner) : runtime(owner) {}
  void before_forward(Module&, const TensorRefs&) override { counts.push_back(runtime.num_gathers()); }
  void after_forward(Module&, const TensorRefs&) override {}
  const FsdpRuntime& runtime;
  std::vector<std::int64_t> counts;
};

TEST(Fsdp, Gathers_ahead_in_an_evaluation_or_once_if_it_never_reshards) {
  for (const bool reshards : {true, false}) {
    on_two_ranks([&](World& world) {
      Sharded sharded(world,
                      {.reshard_after_forward = reshards ? ReshardAfterForward::kAlways : ReshardAfterForward::kNever});
      sharded.shard().fill();
      const auto so_far = std::make_shared<GathersSoFar>(*sharded.runtime);
      for (const auto& [name, child] : sharded.model->named_children()) child->add_hook(so_far);
      const at::NoGradGuard no_grad;
      const at::Tensor expected = sharded.model(input());
      so_far->counts.clear();
      const std::int64_t before = sharded.runtime->num_gathers();
      sharded.runtime->begin_evaluation();
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(sharded.model(input()), expected));
      // In this forward the unit that was gathered ahead is left out.
      const at::Tensor hidden = sharded.model->first(input());
      EXPECT_EQ(sharded.model->third(hidden).size(1), 3);
      sharded.runtime->end_evaluation();
      for (std::int64_t& count : so_far->counts) count -= before;
      so_far->counts.resize(9);
      if (reshards) {
        EXPECT_THAT(so_far->counts, ::testing::ElementsAre(1, 2, 3, 5, 6, 7, 8, 9, 10));
      } else {
        EXPECT_THAT(so_far->counts, ::testing::ElementsAre(1, 2, 3, 3, 3, 3, 3, 3, 3));
      }
      EXPECT_THROW((void)(sharded.model->second->weight->local() + 1), c10::Error) << "released at the end";
      const at::AutoGradMode with_gradients(true);
      sharded.run_microbatch(input());
      sharded.runtime->finish();
      sharded.model->first->weight->stored().detach().add_(1.0);
      sharded.runtime->clear();
      const at::NoGradGuard again;
      sharded.runtime->begin_evaluation();
      EXPECT_FALSE(at::equal(sharded.model(input()), expected)) << "sees what was written between steps";
      sharded.runtime->end_evaluation();
    });
  }
}

TEST(Fsdp, Refuses_another_order_of_units_by_their_names) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.shard().fill();
    sharded.run_microbatch(input());
    sharded.runtime->begin_microbatch(/*is_last=*/true);
    EXPECT_THAT(
        [&] {
          (void)sharded.model->second(at::ones({2, 5}, at::kDouble));
        },
        ThrowsMessage<StateError>(HasSubstr("next 'first', got 'second'")));
    sharded.runtime->abandon();
    sharded.run_microbatch(input());
  });
}

TEST(Fsdp, Goes_on_after_an_exception_in_the_first_microbatch) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.shard().fill();
    sharded.runtime->begin_microbatch(/*is_last=*/true);
    EXPECT_THAT([&] { (void)sharded.model(at::ones({2, 7}, at::kDouble)); }, Throws<ConfigError>());
    sharded.runtime->abandon();
    Sharded fresh(world);
    fresh.shard().fill();
    for (Sharded* each : {&sharded, &fresh}) {
      each->run_microbatch(input());
      each->runtime->finish();
    }
    EXPECT_TRUE(at::equal(sharded.model->first->weight->stored().grad(), fresh.model->first->weight->stored().grad()));
  });
}

// Behaves like NCCL after a peer has died: the operation leaves arbitrary values, and throw_if_failed() reports the
// cause.
struct AbortedGather : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  [[nodiscard]] Work all_gather(const at::Tensor&, const at::Tensor&) override { return {}; }
  void throw_if_failed() override { throw CommunicationError("rank 1 is gone"); }
};

TEST(Fsdp, Does_not_hand_out_weights_that_a_failed_communication_left) {
  const auto thread = lone_rank(0, 2);
  const auto world = world_of<AbortedGather>(*thread);
  Sharded sharded(*world);
  sharded.shard().fill();
  EXPECT_THAT([&] { (void)sharded.model->full_state_dict(); }, ThrowsMessage<CommunicationError>("rank 1 is gone"));
}

TEST(Fsdp, Refuses_to_thaw_parameters_after_sharding) {
  on_two_ranks([](World& world) {
    Sharded sharded(world);
    sharded.model->second->set_requires_grad(false);
    sharded.shard().fill();
    sharded.model->second->set_requires_grad(true);
    EXPECT_THAT([&] { sharded.run_microbatch(input()); },
                ThrowsMessage<StateError>(HasSubstr("expected requires_grad = 0 of second.weight")));
  });
}

TEST(Fsdp, Refuses_modules_that_have_storage_or_nothing_to_shard) {
  on_two_ranks([](World& world) {
    Sharded filled(world);
    filled.fill();
    EXPECT_THAT([&] { filled.shard(); }, ThrowsMessage<StateError>(HasSubstr("first.weight without storage")));
    Sharded twice(world);
    twice.shard();
    EXPECT_THAT([&] { twice.shard(); }, ThrowsMessage<ConfigError>(HasSubstr("none that belong to no other unit")));
  });
}

}  // namespace
}  // namespace d9d::test::fsdp_test
