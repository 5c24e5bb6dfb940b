// Which values of a step are logged, and when they are written.
#include "d9d/loop/run/step_log.h"

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/loop/run/step_costs.h"
#include "d9d/metrics/classification/classification_metric.h"
#include "d9d/metrics/classification/curve_metric.h"
#include "d9d/metrics/compose_metric.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"
#include "tests/support/recording_world.h"

namespace d9d::step_log_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::Le;

PendingSteps::Step step_of(std::int64_t index, const at::Tensor& values, const SideStream& copies) {
  return {.index = index,
          .known = {{"loss", static_cast<double>(index)}},
          .collected = CollectedValues{.series = {{.name = "metric"}, {.name = "counts", .size = 2}},
                                       .values = HostCopy(values, copies)}};
}

TEST(PendingSteps, Are_written_in_order_with_scalars_and_counts) {
  std::vector<std::string> written;
  PendingSteps pending([&](std::int64_t step, const std::string& name, const TrackerValue& value) {
    const auto* const scalar = std::get_if<double>(&value);
    written.push_back(cat(step, " ", name, " ", scalar ? *scalar : std::get<CountHistogram>(value).counts.back()));
  });
  const SideStream copies(at::kCPU);
  pending.add(step_of(3, at::tensor({0.5, 1.0, 2.0}, at::kDouble), copies));
  pending.add({.index = 4, .known = {{"loss", 4.0}}});
  pending.write_until(/*last=*/-1);
  EXPECT_THAT(written, ElementsAre("3 loss 3", "3 metric 0.5", "3 counts 2", "4 loss 4"));
}

class PendingStepsCuda : public test::GpuTest {};

// Fills the caches of pinned memory and of kernels, whose first use waits for the device, then keeps the device busy.
at::Tensor busy_device(const SideStream& copies) {
  const at::Device device(at::kCUDA, 0);
  at::Tensor busy = at::ones({4096, 4096}, device);
  {
    std::vector<HostCopy> first;
    for (int i = 0; i < 8; ++i) {
      busy = busy.mm(busy).clamp_max(1.0);
      first.emplace_back(busy.view(-1).narrow(0, 0, 3).to(at::kDouble), copies);
    }
    for (const HostCopy& each : first) (void)each.wait();
  }
  for (int i = 0; i < 400; ++i) busy = busy.mm(busy).clamp_max(1.0);
  return busy.view(-1).narrow(0, 0, 3).to(at::kDouble);
}

TEST_F(PendingStepsCuda, Writes_a_step_when_its_values_are_there_and_some_steps_later_at_the_latest) {
  std::vector<std::int64_t> written;
  PendingSteps pending([&](std::int64_t step, const std::string& name, const TrackerValue&) {
    if (name == "loss") written.push_back(step);
  });
  const SideStream copies(at::Device(at::kCUDA, 0));
  const at::Tensor values = busy_device(copies);
  for (std::int64_t i = 0; i < 3; ++i) pending.add(step_of(i, values, copies));
  pending.write_until(-1);
  EXPECT_THAT(written, ElementsAre()) << "a step is written although its values are not there";
  pending.write_until(0);
  EXPECT_THAT(written.front(), 0);
  pending.write_until(2);
  EXPECT_THAT(written, ElementsAre(0, 1, 2));
}

// A device that computes until it is told to end cannot be had without a GPU, so this looks at the log of a run there.
class StepLogCuda : public test::GpuTest {};

TEST_F(StepLogCuda, Lags_behind_as_many_steps_as_is_configured) {
  const SideStream copies(at::Device(at::kCUDA, 0));
  for (const std::int64_t lag : {1, 3}) {
    std::vector<std::int64_t> written;
    PendingSteps pending([&](std::int64_t step, const std::string&, const TrackerValue&) { written.push_back(step); });
    const at::Tensor values = busy_device(copies);
    for (std::int64_t step = 0; step <= lag; ++step) {
      pending.add({.index = step,
                   .known = {{"loss", 0.0}},
                   .collected = CollectedValues{.series = {}, .values = HostCopy(values, copies)}});
      pending.write_until(step - lag);  // as StepLog::write() does with max_pending_steps
      EXPECT_EQ(written.empty(), step < lag);
    }
  }
}

TEST(StepLog, Says_where_time_and_memory_go) {
  toy::Job job({{toy::samples(0, 4)}, {toy::samples(4, 4)}, {toy::samples(8, 4)}, {toy::samples(12, 4)}});
  job.config.logging.period_steps = {EverySteps{2}};
  const auto start = std::chrono::steady_clock::now();
  job.train();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto lines = toy::Job::logged();
  ASSERT_EQ(lines.size(), 4U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i].at("data_seconds").get<double>(),
                AllOf(Ge(0.0), Le(lines[i].at("step_seconds").get<double>())));
    const bool is_logged = i % 2 == 1;
    for (const char* const name : {"tokens_per_second", "host_bytes", "skipped_steps"}) {
      EXPECT_EQ(lines[i].contains(name), is_logged) << name << " of step " << i;
    }
    EXPECT_FALSE(lines[i].contains("mfu")) << "without FLOPs a token";
    if (!is_logged) continue;
    EXPECT_GE(lines[i].at("tokens_per_second").get<double>(), 8 / seconds) << "8 samples in a part of the run";
    EXPECT_GT(lines[i].at("host_bytes").get<double>(), 1e6);
    EXPECT_EQ(lines[i].at("skipped_steps"), 0);
  }
}

TEST(StepLog, Counts_steps_that_changed_nothing) {
  toy::Job job({{toy::samples(0, 4)}, {toy::samples(4, 4)}, {toy::samples(8, 4)}});
  job.provider.packs[1][0].y[0] = std::nan("");
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  job.train();
  std::vector<int> skipped;
  for (const auto& line : toy::Job::logged()) skipped.push_back(line.at("skipped_steps"));
  EXPECT_THAT(skipped, ElementsAre(0, 1, 1));
}

// A task with more metrics than the toy's sum: maxima, minima, and others that keep sums.
struct ManyMetrics : toy::Task {
  explicit ManyMetrics(int num_of_each) : num(num_of_each) {}
  MetricMap create_metrics() override {
    MetricMap metrics = toy::Task::create_metrics();
    for (int i = 0; i < num; ++i) {
      metrics.emplace(cat("largest_", i), std::make_shared<MaxMetric>());
      metrics.emplace(cat("smallest_", i), std::make_shared<MinMetric>());
      metrics.emplace(cat("last_", i), std::make_shared<LastMetric>());
      metrics.emplace(cat("scores_", i), std::make_shared<ComposeMetric>(MetricMap{
                                             {"f1", std::make_shared<ClassificationMetric>(BinaryProblem{}, f1)},
                                             {"auroc", std::make_shared<CurveMetric>(CurveMetricConfig{}, auroc)}}));
    }
    return metrics;
  }
  int num;
};

TEST(StepLog, Reduces_all_metrics_in_one_collective_an_op) {
  const auto num_reductions = [](int num_of_each) {
    std::int64_t num = 0;  // by the first rank
    test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
      std::vector<std::string> operations;
      const DistContext context({.mesh = {.data_parallel_replicate = 2},
                                 .world = test::recording(world, operations),
                                 .local_rank = world.rank()});
      toy::Job job({{toy::samples(world.rank(), 1)}, {toy::samples(world.rank() + 2, 1)}});
      ManyMetrics task(num_of_each);
      job.make_trainer(context, task).train();
      if (world.rank() == 0) num = std::ranges::count(operations, "all_reduce");
    });
    return num;
  };
  const std::int64_t with_one = num_reductions(0);
  EXPECT_GT(with_one, 0);
  const std::int64_t of_two_steps = 2 * 2;  // maxima and minima, at each step
  EXPECT_EQ(num_reductions(1), with_one + of_two_steps);
  EXPECT_EQ(num_reductions(4), with_one + of_two_steps) << "25 metrics";
}

TEST(StepLog, Writes_the_steps_before_an_exception) {
  toy::Job job({{toy::samples(0, 4)}, {toy::samples(4, 4)}, {toy::samples(8, 4)}});
  job.task.throws_at_step = 2;
  EXPECT_THROW(job.train(), UsageError);
  EXPECT_EQ(toy::Job::logged().size(), 2U);
}

TEST(StepCosts, Know_the_peaks_of_devices_by_name) {
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H20"), 148e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_flops("another device"), std::nullopt);
}

class StepCostsCuda : public test::GpuTest {};

TEST_F(StepCostsCuda, Have_the_utilization_and_the_peak) {
  const DistContext context({.world = one_rank_world(at::Device(at::kCUDA, 0))});
  const at::Tensor model = at::ones({1000}, context.device());
  StepCosts costs(context, /*flops_per_token=*/1e12);
  (void)costs.peak_memory();
  const auto before = static_cast<double>(costs.memory_now());
  (void)at::empty({1 << 26}, at::TensorOptions(context.device()).dtype(at::kByte));
  EXPECT_THAT(costs.peak_memory()[0].item<double>() - before, Ge(double{1 << 26}));
  EXPECT_LT(static_cast<double>(costs.memory_now()) - before, double{1 << 26});
  costs.add_tokens(100);
  const Throughput rate = costs.throughput();
  EXPECT_THAT(rate.tokens_per_second, Gt(0.0));
  if (const auto peak = peak_flops(cuda_device_name(context.device()))) {
    EXPECT_NEAR(rate.mfu.value(), rate.tokens_per_second * 1e12 / *peak, 1e-9 * *rate.mfu);
  }
}

}  // namespace
}  // namespace d9d::step_log_test
