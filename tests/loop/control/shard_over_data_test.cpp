#include "d9d/loop/control/shard_over_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::shard_over_data_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Parts that are units, and a scale that belongs to none.
class Scaled : public toy::Model {
 public:
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    return toy::Model::forward(x, shared) * scale->local();
  }
  const ParameterPtr scale = [this] {
    auto parameter = register_parameter("scale", {.shape = {1}, .init = init::ones()});
    parameter->to(at::kDouble);
    return parameter;
  }();
};

struct Provider : toy::Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
  }
};

// The whole parameters after two steps of two microbatches a rank and step; `num_ranks` ranks share the samples of
// four.
std::map<std::string, at::Tensor> trained(const DeviceMeshParameters& mesh) {
  std::map<std::string, at::Tensor> result;
  const std::int64_t num_ranks = mesh.world_size();
  test::run_ranks(test::RankBackend::kThreads, num_ranks, [&](World& world) {
    const DistContext context({.mesh = mesh, .world = test::borrowed(world), .local_rank = world.rank()});
    toy::Job job({});
    for (std::int64_t step = 0; step < 2; ++step) {
      std::vector<toy::Batch> pack;
      for (std::int64_t i = world.rank(); i < 8; i += num_ranks) pack.push_back(toy::samples(8 * step + i, 1));
      job.provider.packs.push_back(std::move(pack));
    }
    job.config.schedule.total_steps = 2;
    job.config.logging.tracker = NullTrackerConfig{};
    Provider provider;
    provider.packs = job.provider.packs;
    provider.make_model = [] { return ModulePtr<toy::Model>(make_module<Scaled>()); };
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 0.05});
    Trainer<toy::Types> trainer(context, job.config,
                                {.task = job.task,
                                 .model = provider,
                                 .data = provider,
                                 .optimizer = optimizer,
                                 .lr_scheduler = job.lr_scheduler});
    trainer.train();
    const auto state = trainer.module().full_state_dict();
    if (world.rank() == 0) result = state;
  });
  return result;
}

TEST(ShardOverData, Trains_as_one_rank_does) {
  const auto one = trained({});
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_shard = 2}, DeviceMeshParameters{.data_parallel_shard = 4},
        DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 2},
        DeviceMeshParameters{.data_parallel_replicate = 2}}) {
    const auto many = trained(mesh);
    ASSERT_EQ(many.size(), one.size());
    for (const auto& [name, values] : one) {
      EXPECT_TRUE(at::allclose(many.at(name), values, 1e-12, 1e-12)) << name << ", " << mesh.data_parallel_shard;
    }
  }
}

TEST(ShardOverData, Refuses_degrees_that_cut_a_model_or_its_sequences) {
  const auto model = make_module<toy::Model>();
  const DeviceMeshParameters mesh{.data_parallel_shard = 2, .tensor_parallel = 2};
  const DistContext context({.mesh = mesh, .world = test::lone_rank(0, mesh.world_size())});
  EXPECT_THAT([&] { shard_over_data(context, model.shared(), {}); },
              ThrowsMessage<ConfigError>(HasSubstr("mesh.tensor_parallel = 2")));
}

}  // namespace
}  // namespace d9d::shard_over_data_test
