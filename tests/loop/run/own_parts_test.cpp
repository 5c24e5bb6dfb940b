// The custom optimiser and metric of docs/own_model.md: they compute what the page says, train as on one rank, and
// continue bit for bit after a stop.
#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/loop/task/shard_over_data.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test::own_parts_test {
namespace {

namespace fs = std::filesystem;

// Gradient descent with momentum.
class Momentum {
 public:
  Momentum(const std::vector<d9d::NamedParameter>& parameters, double learning_rate)
      : learning_rate_(learning_rate), parameters_(parameters) {
    for (const auto& parameter : parameters_) velocities_[parameter.name] = at::zeros_like(parameter.tensor.detach());
  }
  double learning_rate() const { return learning_rate_; }
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      if (!parameter.tensor.grad().defined()) continue;
      const at::Tensor& velocity = velocities_.at(parameter.name).mul_(0.9).add_(parameter.tensor.grad());
      parameter.tensor.sub_(velocity, learning_rate);
    }
  }
  // Saved, and filled again in place; on another mesh each rank gets the part that it keeps there.
  std::map<std::string, d9d::DTensor> state_dict() const {
    std::map<std::string, d9d::DTensor> state;
    for (const auto& parameter : parameters_) {
      state.emplace(parameter.name + ".velocity", parameter.laid_out(velocities_.at(parameter.name)));
    }
    return state;
  }

 private:
  double learning_rate_;
  std::vector<d9d::NamedParameter> parameters_;
  std::map<std::string, at::Tensor> velocities_;
};

struct MomentumProvider : d9d::OptimizerProvider {
  d9d::Optimizer build_optimizer(const d9d::DistContext&, const d9d::TrainableParameters& trainable) override {
    return d9d::Optimizer(Momentum(trainable.parameters, /*learning_rate=*/0.05));
  }
};

// Balanced accuracy: the share of a class's samples that were recognised, as a mean over the classes that occur.
class BalancedAccuracy final : public d9d::Metric {
 public:
  explicit BalancedAccuracy(std::int64_t num_classes) : counts_({2, num_classes}) {}
  void update(const at::Tensor& guesses, const at::Tensor& classes) {  // [B] int64
    const at::Tensor is_of = classes.unsqueeze(1) == at::arange(counts_.shape()[1], classes.options());
    const at::Tensor is_right = is_of.logical_and((guesses == classes).unsqueeze(1));
    counts_.update(at::stack({is_right.sum(0), is_of.sum(0)}));
  }
  at::Tensor compute() const override { return (counts_.value()[0] / counts_.value()[1]).nanmean(); }
  std::vector<d9d::Accumulator*> accumulators() override { return {&counts_}; }

 private:
  d9d::Accumulator counts_;  // [2, num_classes]: recognised samples, all samples
};

constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kSamples = 8;  // of a step

// The signs of y are the two classes.
struct Task : toy::Task {
  MetricMap create_metrics() override { return {{"balanced_accuracy", accuracy}}; }
  void update_metrics(const State& state, const MetricMap&) override {
    accuracy->update((state.output.flatten() > 0).to(at::kLong), (state.batch.y.flatten() > 0).to(at::kLong));
  }
  const std::shared_ptr<BalancedAccuracy> accuracy = std::make_shared<BalancedAccuracy>(2);
};

struct Provider : toy::Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
  }
};

// A job that continues logs into the file of the one that stopped.
struct Trained {
  std::vector<double> losses;      // as logged, of each step
  std::vector<double> accuracies;  // as logged, of four steps each
  std::map<std::string, at::Tensor> parameters;
};

// Saves every third step in `folder`, unless that is empty, and continues from a checkpoint there.
Trained train(const DeviceMeshParameters& mesh, const fs::path& folder = {}, std::int64_t throws_at_step = -1) {
  Trained trained;
  run_ranks(RankBackend::kThreads, mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = mesh, .world = borrowed(world), .local_rank = world.rank()});
    toy::Job job({});
    Task task;
    task.throws_at_step = throws_at_step;
    Provider provider;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      provider.packs.emplace_back();
      for (std::int64_t i = world.rank(); i < kSamples; i += mesh.world_size()) {
        provider.packs.back().push_back(toy::samples(kSamples * step + i, 1));
      }
    }
    job.config.schedule.total_steps = kSteps;
    job.config.logging.period_steps = {EverySteps{4}};
    if (!folder.empty()) job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{3}}};
    MomentumProvider optimizer;
    Trainer<toy::Types> trainer(
        context, job.config,
        {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = job.lr_scheduler});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const auto parameters = trainer.module().full_state_dict();
    if (!context.is_main_process()) return;
    for (const auto& [name, tensor] : parameters) trained.parameters.emplace(name, tensor.clone());
  });
  for (const nlohmann::json& line : toy::Job::logged()) {
    trained.losses.push_back(line.at("loss"));
    if (line.contains("balanced_accuracy")) trained.accuracies.push_back(line.at("balanced_accuracy"));
  }
  return trained;
}

std::vector<DeviceMeshParameters> meshes() {
  return {{},
          {.data_parallel_shard = 2},
          {.data_parallel_replicate = 2},
          {.data_parallel_replicate = 2, .data_parallel_shard = 2},
          {.data_parallel_shard = 8}};
}

class OwnParts : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  // Ends in the sixth step, after saving the third.
  void break_off(const DeviceMeshParameters& mesh) {
    fs::remove_all(folder_);
    EXPECT_THROW(train(mesh, folder_, /*throws_at_step=*/5), Error);
    EXPECT_TRUE(fs::exists(folder_ / "save-3"));
  }
  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

void expect_near(const Trained& actual, const Trained& expected) {
  const double tolerance = test::tolerance("fp64").value;
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * expected.losses[i]) << "line " << i;
  }
  EXPECT_EQ(actual.accuracies, expected.accuracies);  // exact, since they are computed from counts
  for (const auto& [name, values] : expected.parameters) {
    EXPECT_TRUE(at::allclose(actual.parameters.at(name), values, tolerance, tolerance)) << name;
  }
}

void expect_equal(const Trained& actual, const Trained& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.accuracies, expected.accuracies);
  for (const auto& [name, values] : expected.parameters) {
    EXPECT_TRUE(at::equal(actual.parameters.at(name), values)) << name;
  }
}

TEST(OwnMomentum, Adds_up_gradients) {
  const at::Tensor parameter = at::zeros({1}, at::kDouble).requires_grad_();
  parameter.mutable_grad() = at::ones({1}, at::kDouble);
  Momentum momentum({{.name = "p", .tensor = parameter}}, /*learning_rate=*/0.1);
  momentum.step(0.1);
  momentum.step(0.1);
  EXPECT_NEAR(parameter.item<double>(), -0.1 * 1 - 0.1 * 1.9, 1e-15);
}

TEST(OwnMetric, Weighs_classes_alike_whatever_their_numbers) {
  BalancedAccuracy accuracy(3);
  accuracy.update(at::tensor({0, 0, 1}, at::kLong), at::tensor({0, 0, 0}, at::kLong));
  accuracy.update(at::tensor({1}, at::kLong), at::tensor({1}, at::kLong));
  EXPECT_NEAR(accuracy.compute().item<double>(), (2.0 / 3 + 1) / 2, 1e-15);  // the third class does not occur
}

TEST_F(OwnParts, Train_on_every_mesh_as_on_one_rank) {
  const Trained whole = train({});
  ASSERT_EQ(whole.accuracies.size(), 2U);
  for (const DeviceMeshParameters& mesh : meshes()) {
    SCOPED_TRACE(cat(mesh.data_parallel_replicate, " x ", mesh.data_parallel_shard));
    expect_near(train(mesh), whole);
  }
}

TEST_F(OwnParts, Continue_bit_for_bit_where_their_job_stopped) {
  for (const DeviceMeshParameters& mesh : meshes()) {
    SCOPED_TRACE(cat(mesh.data_parallel_replicate, " x ", mesh.data_parallel_shard));
    const Trained whole = train(mesh);
    break_off(mesh);
    expect_equal(train(mesh, folder_), whole);
  }
}

TEST_F(OwnParts, Continue_on_another_mesh) {
  const Trained whole = train({});
  break_off({.data_parallel_shard = 2});
  expect_near(train({.data_parallel_replicate = 2, .data_parallel_shard = 2}, folder_), whole);
}

}  // namespace
}  // namespace d9d::test::own_parts_test
