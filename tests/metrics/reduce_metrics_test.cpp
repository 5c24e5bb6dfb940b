#include "d9d/metrics/reduce_metrics.h"

#include <cmath>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include "d9d/core/device/side_stream.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/classification/classification_metric.h"
#include "d9d/metrics/classification/curve_metric.h"
#include "d9d/metrics/perplexity_metric.h"
#include "d9d/metrics/throughput_metric.h"

#include "tests/support/device.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"
#include "tests/support/recording_world.h"
#include "tests/support/stream_gate.h"

namespace d9d::test::reduce_metrics_test {
namespace {

// The largest and smallest values, and how many of them are positive and not.
class Extremes final : public Metric {
 public:
  void update(const at::Tensor& values) {
    largest_.update(values.max());
    smallest_.update(values.min().view({1, 1}));
    counts_.update(at::stack({(values > 0).sum(), (values <= 0).sum()}));
  }
  at::Tensor compute() const override {
    return at::cat({largest_.value().view({1}), smallest_.value().view({1}), counts_.value()});
  }
  std::vector<Accumulator*> accumulators() override { return {&largest_, &counts_, &smallest_}; }

 private:
  Accumulator largest_{{}, ReduceOp::kMax}, smallest_{{1, 1}, ReduceOp::kMin}, counts_{{2}};
};

at::Tensor numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

DeviceMesh all_ranks(World& world) { return {"all", {{"dp", world.size()}}, borrowed(world)}; }

class ReducedMetrics : public ::testing::TestWithParam<RankBackend> {
 protected:
  void SetUp() override {
    if (GetParam() == RankBackend::kNccl && !has_gpus(2)) GTEST_SKIP() << "needs 2 GPUs";
  }
};

std::string name_of(const ::testing::TestParamInfo<RankBackend>& info) { return to_string(info.param); }
INSTANTIATE_TEST_SUITE_P(Backends, ReducedMetrics, ::testing::Values(RankBackend::kThreads, RankBackend::kGloo),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Nccl, ReducedMetrics, ::testing::Values(RankBackend::kNccl), name_of);

TEST_P(ReducedMetrics, Are_nan_on_all_ranks_where_a_value_of_one_rank_is) {
  run_ranks(GetParam(), GetParam() == RankBackend::kNccl ? 2 : 3, [](World& world) {
    const auto value = static_cast<double>(world.rank()) - 1;
    for (std::int64_t rank = 0; rank < world.size(); ++rank) {
      Extremes extremes;
      extremes.update(numbers({world.rank() == rank ? std::nan("") : value, value}).to(world.device()));
      reduce_metrics({&extremes}, all_ranks(world));
      const at::Tensor found = extremes.compute().cpu();
      EXPECT_TRUE(found[0].isnan().item<bool>() && found[1].isnan().item<bool>()) << "of rank " << rank;
    }
    Extremes infinite;  // is no NaN
    infinite.update(numbers({-HUGE_VAL, HUGE_VAL}).to(world.device()));
    reduce_metrics({&infinite}, all_ranks(world));
    EXPECT_TRUE(at::equal(infinite.compute().narrow(0, 0, 2).cpu(), numbers({HUGE_VAL, -HUGE_VAL})));
  });
}

// The first rank has no updates, as one without the last pipeline stage.
TEST_P(ReducedMetrics, Cover_the_updates_of_all_ranks_until_reset) {
  run_ranks(GetParam(), GetParam() == RankBackend::kNccl ? 2 : 3, [](World& world) {
    const DeviceMesh ranks = all_ranks(world);
    const auto on_device = [&](const std::vector<double>& values) { return numbers(values).to(world.device()); };
    Extremes extremes;
    SumMetric sum;
    MeanMetric mean;
    for (const double factor : {1.0, 10.0}) {
      double expected_sum = 0, weighted = 0, weight = 0;
      for (std::int64_t rank = 1; rank < world.size(); ++rank) {
        const double value = factor * static_cast<double>(rank);
        if (rank == world.rank()) {
          extremes.update(on_device({value, -value - 0.5}));
          sum.update(on_device({value, 0.25}));
          mean.update(on_device({value}), on_device({4 - value}));
        }
        expected_sum += value + 0.25;
        weighted += value * (4 - value);
        weight += 4 - value;
      }
      reduce_metrics({&extremes, &sum, &mean}, ranks);
      const double most = factor * static_cast<double>(world.size() - 1);
      const auto others = static_cast<double>(world.size() - 1);
      EXPECT_TRUE(at::equal(extremes.compute().cpu(), numbers({most, -most - 0.5, others, others})));
      EXPECT_EQ(sum.compute().item<double>(), expected_sum);
      EXPECT_EQ(mean.compute().item<double>(), weighted / weight);
      for (Metric* metric : std::vector<Metric*>{&extremes, &sum, &mean}) metric->reset();
    }
  });
}

// One all-reduce a metric, as an oracle: the sum over threads of a value does not depend on what it is packed with.
TEST(ReduceMetrics, Has_the_bits_of_metrics_that_are_reduced_alone) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh ranks = all_ranks(world);
    SumMetric first, second;
    MeanMetric mean;
    const double value = 1.0 / static_cast<double>(3 + world.rank());
    first.update(numbers({value}));
    second.update(numbers({value * value}));
    mean.update(numbers({value}), numbers({1 / value}));
    std::vector<at::Tensor> expected;
    for (const at::Tensor& own : {first.compute(), second.compute(), mean.sums()}) {
      expected.push_back(own.clone());
      ranks.communicator()->all_reduce(expected.back(), ReduceOp::kSum).wait();
    }
    reduce_metrics({&first, &second, &mean}, ranks);
    EXPECT_TRUE(at::equal(first.compute(), expected[0]));
    EXPECT_TRUE(at::equal(second.compute(), expected[1]));
    EXPECT_TRUE(at::equal(mean.sums(), expected[2]));
  });
}

TEST(ReduceMetrics, Communicates_once_for_each_op) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    std::vector<std::string> operations;
    const DeviceMesh ranks("all", {{"dp", 2}}, recording(world, operations));
    SumMetric sum;
    MeanMetric mean;
    Extremes one, other;
    reduce_metrics({&sum, &mean}, ranks);
    EXPECT_EQ(operations, std::vector<std::string>(1, "all_reduce"));
    operations.clear();
    reduce_metrics({&one, &sum, &mean, &other}, ranks);
    EXPECT_EQ(operations, std::vector<std::string>(3, "all_reduce"));
    operations.clear();
    reduce_metrics({}, ranks);
    EXPECT_TRUE(operations.empty());
  });
}

// Ranks 0 and 1 share sequences, 2 and 3 others: of samples each pair counts once, of tokens each rank.
TEST(ReduceMetrics, Count_samples_once_for_ranks_that_share_sequences) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh ranks("all", {{"dp", 2}, {"cp", 2}}, borrowed(world));
    SumMetric tokens;
    Extremes extremes;
    const std::shared_ptr<Metric> samples = counted_by_sample(std::make_shared<SumMetric>());
    const std::shared_ptr<Metric> scores = counted_by_sample(std::make_shared<ClassificationMetric>(
        MulticlassProblem{.num_classes = 3, .average = Average::kMicro}, recall));
    for (int round = 0; round < 2; ++round) {
      const auto dp = static_cast<double>(world.rank() / 2);
      tokens.update(numbers({static_cast<double>(1 << world.rank())}));
      extremes.update(numbers({static_cast<double>(world.rank())}));
      static_cast<SumMetric&>(*samples).update(numbers({10 + dp}));
      auto& counts = static_cast<ClassificationMetric&>(*scores);
      counts.update(at::eye(3), at::tensor({0, 1, 0}, at::kLong));
      reduce_metrics({&tokens, samples.get(), scores.get(), &extremes}, ranks);
      EXPECT_EQ(tokens.compute().item<double>(), 15);
      EXPECT_EQ(samples->compute().item<double>(), 21);
      EXPECT_EQ(counts.counts().tp.sum().item<double>(), 4);
      EXPECT_TRUE(at::equal(extremes.compute().narrow(0, 0, 2), numbers({3, 0})));
      for (Metric* each : std::vector<Metric*>{&tokens, &extremes, samples.get(), scores.get()}) each->reset();
    }
  });
}

TEST(ReduceMetrics, Has_the_mean_of_the_last_values_of_ranks) {
  run_ranks(RankBackend::kThreads, 3, [](World& world) {
    LastMetric last;
    if (world.rank() > 0) {  // the first has no updates
      last.update(numbers({100}));
      last.update(numbers({static_cast<double>(world.rank())}));
    }
    reduce_metrics({&last}, all_ranks(world));
    EXPECT_EQ(last.compute().item<double>(), 1.5);
  });
}

TEST(ReduceMetrics, Divides_the_counts_of_all_ranks_by_the_longest_time) {
  run_ranks(RankBackend::kThreads, 3, [](World& world) {
    double now = 0;
    ThroughputMetric metric([&] { return now; });
    now = static_cast<double>(1 + world.rank());
    metric.update(numbers({2}));
    reduce_metrics({&metric}, all_ranks(world));
    EXPECT_EQ(metric.compute().item<double>(), 2);
  });
}

TEST(ReduceMetrics, Leaves_the_values_of_one_rank) {
  SumMetric sum;
  sum.update(numbers({1, 2}));
  reduce_metrics({&sum}, DeviceMesh());
  EXPECT_EQ(sum.compute().item<double>(), 3);
}

class ReduceMetricsCuda : public GpuTest {};

// The stream beside has not begun when the host goes on: it reads what was updated before, and memory that the current
// stream does not get again meanwhile.
TEST_F(ReduceMetricsCuda, Leaves_later_updates_to_the_next_time) {
  const at::Device gpu(at::kCUDA, 0);
  const auto full = [&](double value) { return at::full({1000}, value, at::TensorOptions(gpu).dtype(at::kDouble)); };
  const SideStream side(gpu);
  Extremes extremes;
  std::vector<at::Tensor> computed;
  const auto compute = [&] {
    reduce_metrics({&extremes}, DeviceMesh());
    computed.push_back(extremes.compute());
    extremes.reset();
  };
  extremes.update(full(1));
  side.run(compute).synchronize();  // loads kernels, which waits for the device
  std::optional<StreamGate> gate;
  extremes.update(full(2));
  (void)side.run([&] { gate.emplace(gpu); });
  const StreamEvent first = side.run(compute);
  std::vector<at::Tensor> others;
  for (int i = 0; i < 100; ++i) others.push_back(at::full({}, 9.0, at::TensorOptions(gpu).dtype(at::kDouble)));
  extremes.update(full(3));
  EXPECT_FALSE(first.is_complete());
  gate->open();
  first.synchronize();
  side.run(compute).synchronize();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto value = static_cast<double>(i + 1);
    EXPECT_TRUE(at::equal(computed[i].cpu(), numbers({value, value, 1000, 0}))) << i;
  }
}

TEST_F(ReduceMetricsCuda, Updates_and_computes_without_a_wait) {
  const auto on_gpu = at::TensorOptions(at::Device(at::kCUDA, 0));
  const at::Tensor scores = at::full({5, 3}, 0.5, on_gpu), classes = at::ones({5}, on_gpu.dtype(at::kLong));
  SumMetric sum;
  MeanMetric mean;
  MaxMetric largest;
  LastMetric last;
  PerplexityMetric perplexity;
  ThroughputMetric throughput;
  ClassificationMetric f_score(MulticlassProblem{.num_classes = 3, .average = Average::kMacro}, f1);
  ClassificationMetric top_two(MulticlassProblem{.num_classes = 3, .top_k = 2, .average = Average::kWeighted}, recall);
  ClassificationMetric labels(MultilabelProblem{.num_labels = 3, .average = Average::kPerClass}, accuracy);
  CurveMetric area({.num_classes = 3, .average = Average::kMacro}, auroc), precisions({}, average_precision);
  const std::vector<Metric*> metrics = {&sum,     &mean,    &largest, &last, &perplexity, &throughput,
                                        &f_score, &top_two, &labels,  &area, &precisions};
  const auto step = [&] {
    sum.update(scores);
    mean.update(scores, scores);
    largest.update(scores);
    last.update(scores[0][0]);
    perplexity.update(scores, scores);
    throughput.update(classes);
    f_score.update(scores, classes);
    top_two.update(scores, classes);
    labels.update(scores, scores > 0);
    area.update(scores, classes);
    precisions.update(scores.select(1, 0), classes);
    reduce_metrics(metrics, DeviceMesh());
    for (Metric* const each : metrics) (void)each->compute();
  };
  step();  // loads kernels, which waits
  EXPECT_FALSE(waits_for_device(step));
}

TEST_F(ReduceMetricsCuda, Does_not_wait_for_the_device) {
  const at::Tensor value = at::ones({2}, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kDouble));
  const SideStream side(value.device());
  Extremes extremes;
  EXPECT_FALSE(waits_for_device([&] {
    extremes.update(value);
    (void)side.run([&] {
      reduce_metrics({&extremes}, DeviceMesh());
      (void)extremes.compute();
      extremes.reset();
    });
  }));
}

}  // namespace
}  // namespace d9d::test::reduce_metrics_test
