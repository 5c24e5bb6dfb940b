#include "d9d/loop/task/shard_over_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "d9d/base/check.h"
#include "d9d/modules/adopt.h"
#include "d9d/peft/inject.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::shard_over_data_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A model with parts that are units, and a scale outside of all units.
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

using Units = std::vector<std::shared_ptr<Module>>;

// A model and those of its modules that are units.
struct Case {
  std::function<ModulePtr<toy::Model>()> make_model = [] { return ModulePtr<toy::Model>(make_module<Scaled>()); };
  std::function<Units(toy::Model&)> units = [](toy::Model& model) {
    return Units{model.first.shared(), model.second.shared()};
  };
};

struct Provider : toy::Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    shard_over_data(context, model.shared(), units(*model));
  }
  std::function<Units(toy::Model&)> units;
};

// Returns the full parameters after two steps with two microbatches per rank and step; `num_ranks` ranks share the
// samples of four ranks.
std::map<std::string, at::Tensor> trained(const DeviceMeshParameters& mesh, const Case& shape = {}) {
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
    provider.make_model = shape.make_model;
    provider.units = shape.units;
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

void expect_trains_as_one_rank(const DeviceMeshParameters& mesh, const Case& shape = {}) {
  const auto one = trained({}, shape), many = trained(mesh, shape);
  ASSERT_EQ(many.size(), one.size());
  for (const auto& [name, values] : one) EXPECT_TRUE(at::allclose(many.at(name), values, 1e-12, 1e-12)) << name;
}

TEST(ShardOverData, Trains_as_one_rank_does) {
  expect_trains_as_one_rank({.data_parallel_shard = 2});
  expect_trains_as_one_rank({.data_parallel_shard = 4});
  expect_trains_as_one_rank({.data_parallel_replicate = 2, .data_parallel_shard = 2});
  expect_trains_as_one_rank({.data_parallel_replicate = 2});
}

TEST(ShardOverData, Trains_a_model_without_units) {
  expect_trains_as_one_rank({.data_parallel_shard = 2}, {.units = [](toy::Model&) { return Units(); }});
}

TEST(ShardOverData, Trains_a_unit_that_is_called_twice_and_one_that_is_recomputed) {
  struct Twice : Scaled {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      return Scaled::forward(x, shared) + second(at::sin(first(x)));
    }
  };
  expect_trains_as_one_rank({.data_parallel_shard = 2}, {.make_model = [] {
                              auto model = make_module<Twice>();
                              model->first->set_activation_checkpointing(true);
                              return ModulePtr<toy::Model>(model);
                            }});
}

// Uses the weight of the second linear layer outside of that module.
struct Shared : Scaled {
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    return Scaled::forward(x, shared) + at::linear(at::tanh(first(x)), tied->local());
  }
  const ParameterPtr tied = register_parameter("tied", second->weight);
};

ModulePtr<toy::Model> make_shared_and_frozen() {
  auto model = make_module<Shared>();
  model->first->bias->set_requires_grad(false);
  return model;
}

TEST(ShardOverData, Trains_with_frozen_parameters_and_shared_ones) {
  expect_trains_as_one_rank(
      {.data_parallel_shard = 2},
      {.make_model = make_shared_and_frozen, .units = [](toy::Model& model) { return Units{model.first.shared()}; }});
}

// torch::nn creates its layers in float32; the model has another dtype.
struct WithAdopted : Scaled {
  WithAdopted() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    return Scaled::forward(x, shared) + layer(x);
  }
  static torch::nn::Linear make_layer() { return torch::nn::Linear(2, 1); }
  const ModulePtr<Adopted<detail::AdoptedImpl<decltype(&make_layer)>>> layer =
      register_module("layer", adopt(&make_layer));
};
Units adopted_unit(toy::Model& model) { return Units{dynamic_cast<WithAdopted&>(model).layer.shared()}; }

TEST(ShardOverData, Trains_a_unit_that_is_adopted_and_has_another_dtype_than_float32) {
  expect_trains_as_one_rank(
      {.data_parallel_shard = 2},
      {.make_model = [] { return ModulePtr<toy::Model>(make_module<WithAdopted>()); }, .units = adopted_unit});
}

TEST(ShardOverData, Trains_the_adapter_of_a_unit_that_is_adopted) {
  const Case adapted{.make_model =
                         [] {
                           auto model = make_module<WithAdopted>();
                           const LoraConfig lora{.module_name_pattern = "layer", .params = {.r = 1, .alpha = 2.0}};
                           (void)inject_peft(lora, *model);
                           return ModulePtr<toy::Model>(model);
                         },
                     .units = adopted_unit};
  expect_trains_as_one_rank({.data_parallel_shard = 2}, adapted);
  EXPECT_GT(trained({}, adapted).at("layer.lora_B.weight").abs().item<double>(), 0.0);
}

TEST(ShardOverData, Passes_over_units_that_a_model_has_not) {
  expect_trains_as_one_rank({.data_parallel_shard = 2}, {.units = [](toy::Model& model) {
                              return Units{nullptr, model.first.shared(), nullptr};
                            }});
}

TEST(ShardOverData, Refuses_units_that_are_not_below_the_model_and_units_within_units) {
  const auto text_of = [](const auto& units) -> std::string {
    try {
      (void)trained({.data_parallel_shard = 2}, {.units = units});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text_of([](toy::Model& model) {
                return Units{model.first.shared(), make_module<toy::Model>().shared()};
              }),
              HasSubstr("expected modules below the model as units, got another as unit 1"));
  EXPECT_THAT(text_of([](toy::Model& model) {
                return Units{model.first.shared(), model.first.shared()};
              }),
              HasSubstr("expected each unit once, got first as units 0 and 1"));
}

TEST(ShardOverData, Says_that_a_parameter_is_used_outside_of_its_unit) {
  try {
    (void)trained({.data_parallel_shard = 2}, {.make_model = make_shared_and_frozen});
    ADD_FAILURE() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("make the module that uses it a part of the unit"));
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
