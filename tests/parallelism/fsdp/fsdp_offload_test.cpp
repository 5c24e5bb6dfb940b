// A sharded model that sleeps between steps must train as one that does not, and free its memory.
#include <ATen/DeviceAccelerator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/optim/adamw.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"

namespace d9d::test::fsdp_offload_test {
namespace {

class Stack : public Module {
 public:
  explicit Stack(std::int64_t width)
      : first(register_module<Linear>("first", LinearConfig{width, width})),
        second(register_module<Linear>("second", LinearConfig{width, width})) {}
  at::Tensor forward(const at::Tensor& x) const { return second(at::tanh(first(x))); }

  const ModulePtr<Linear> first;
  const ModulePtr<Linear> second;
};

struct Job {
  Job(const std::shared_ptr<World>& world, std::int64_t width)
      : context({.mesh = {.data_parallel_shard = world->size()}, .world = world}),
        model(make_module<Stack>(width)),
        runtime(std::make_shared<FsdpRuntime>(FsdpConfig{})),
        input(at::sin(at::arange(4 * width, at::device(world->device()).dtype(at::kFloat))).view({4, width})) {
    for (const auto& [name, child] : model->named_children()) {
      parallelize_fsdp(runtime, {.name = name,
                                 .modules = {child},
                                 .axes = {{.mesh = context.mesh(MeshDomain::kDense), .shard_axis = "dp_cp_shard"}}});
    }
    model->materialize(world->device());
    model->reset_parameters(/*base_seed=*/1);
    std::vector<NamedParameter> parameters;
    for (const auto& [name, parameter] : model->named_parameters()) parameters.push_back({name, parameter->stored()});
    optimizer = std::make_unique<AdamW>(parameters, AdamWConfig{.lr = 1e-2});
  }

  void step() {
    runtime->begin_microbatch(/*is_last=*/true);
    model(input).square().sum().backward();
    runtime->end_microbatch();
    runtime->finish();
    optimizer->step(1e-2);
    runtime->clear();
  }
  void sleep_and_wake(const std::function<void()>& asleep) {
    runtime->offload({.dist_context = context, .options = {}});
    std::vector<at::Tensor> moments;
    for (const auto& [name, tensor] : optimizer->state_dict()) moments.push_back(tensor.local);
    OffloadedTensors offloaded = offload_tensors(moments);
    asleep();
    onload_tensors(offloaded);
    runtime->onload({.dist_context = context});
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    for (const auto& [name, parameter] : model->named_parameters()) result.push_back(parameter->stored().clone());
    return result;
  }

  DistContext context;
  ModulePtr<Stack> model;
  std::shared_ptr<FsdpRuntime> runtime;
  at::Tensor input;
  std::unique_ptr<AdamW> optimizer;
};

void expect_that_sleep_changes_nothing(const std::shared_ptr<World>& world) {
  Job plain(world, 12);
  Job sleeper(world, 12);
  for (int i = 0; i < 3; ++i) {
    plain.step();
    sleeper.step();
    sleeper.sleep_and_wake([] {});
  }
  const auto expected = plain.parameters();
  const auto actual = sleeper.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

TEST(FsdpOffload, Between_steps_changes_nothing) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) { expect_that_sleep_changes_nothing(borrowed(world)); });
}

TEST(FsdpOffload, Says_what_is_out_of_order) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    Job job(borrowed(world), 4);
    EXPECT_THROW(job.runtime->onload({.dist_context = job.context}), StateError);
    job.runtime->offload({.dist_context = job.context, .options = {}});
    EXPECT_TRUE(job.runtime->is_offloaded());
    EXPECT_THROW(job.runtime->offload({.dist_context = job.context, .options = {}}), StateError);
    EXPECT_THROW((void)job.model(job.input), StateError);
  });
}

class FsdpOffloadCuda : public GpuTest {};

TEST_F(FsdpOffloadCuda, Gives_nine_tenths_of_the_memory_back_and_changes_nothing) {
  const auto world = one_rank_world(at::Device(at::kCUDA, 0));
  expect_that_sleep_changes_nothing(world);
  const auto used = [] {  // memory of a side stream is free only after the allocator has polled its events
    at::accelerator::synchronizeDevice(0);
    at::accelerator::emptyCache();
    return at::accelerator::getDeviceStats(0).allocated_bytes[0].current;
  };
  const std::int64_t others = used();  // workspaces of LibTorch's matrix products
  Job job(world, 2048);
  const std::int64_t before = used();
  job.step();
  const std::int64_t awake = used();
  std::int64_t asleep = 0;
  job.sleep_and_wake([&] { asleep = used(); });
  EXPECT_GT(awake, before);
  EXPECT_LT(asleep - others, (awake - others) / 10);
  EXPECT_GE(used(), before);
  job.step();
}

}  // namespace
}  // namespace d9d::test::fsdp_offload_test
