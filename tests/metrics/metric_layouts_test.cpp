// Every metric has the same results on one rank and over ranks with uneven parts of the data, and where it continues
// from its accumulators after each microbatch, as a job does that is saved and killed.
#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/ignore_index.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/classification/classification_metric.h"
#include "d9d/metrics/classification/curve_metric.h"
#include "d9d/metrics/compose_metric.h"
#include "d9d/metrics/perplexity_metric.h"
#include "d9d/metrics/reduce_metrics.h"
#include "d9d/metrics/throughput_metric.h"

#include "tests/support/ranks.h"
#include "tests/support/recording_world.h"

namespace d9d::test::metric_layouts_test {
namespace {

constexpr double kRounding = 1e-13;  // sums of the same numbers in another order
constexpr int kMicrobatches = 11;

// Samples of different numbers, some ignored.
struct Microbatch {
  at::Tensor scores, labels, classes;  // [B, 3], [B, 3] of 0 and 1, [B]
};

Microbatch microbatch(int index, int round) {
  const at::Tensor number = at::arange(index * 10 + round, index * 10 + round + index % 4 * 3, at::kDouble);
  const at::Tensor scores = at::sin(number.unsqueeze(1) * at::arange(1, 4) * 7).square();
  const at::Tensor classes = (number * 5).remainder(3).to(at::kLong);
  return {.scores = scores,
          .labels = at::cos(scores * 50).gt(0.2).to(at::kLong),
          .classes = classes.masked_fill(number.remainder(7) == 2, kIgnoreIndex)};
}

// Metrics and how they are updated, which needs their classes.
class All {
 public:
  All() : metrics_(create()) {}
  [[nodiscard]] std::vector<Metric*> metrics() const {
    std::vector<Metric*> all;
    for (const auto& [name, metric] : metrics_) all.push_back(metric.get());
    return all;
  }
  void update(const Microbatch& of) {
    const at::Tensor counted = of.classes.ne(kIgnoreIndex).unsqueeze(1).expand_as(of.scores);
    metric_at<SumMetric>(metrics_, "sum").update(of.scores);
    metric_at<MeanMetric>(metrics_, "mean").update(of.scores, counted);
    metric_at<MaxMetric>(metrics_, "max").update(of.scores);
    metric_at<MinMetric>(metrics_, "min").update(of.scores);
    metric_at<PerplexityMetric>(metrics_, "perplexity").update(of.scores, counted);
    metric_at<SumMetric>(metrics_, "composed/count").update(counted);
    for (const char* const name : {"composed/f1", "accuracy", "recall", "precision_at_2"}) {
      metric_at<ClassificationMetric>(metrics_, name).update(of.scores, of.classes);
    }
    metric_at<ClassificationMetric>(metrics_, "binary").update(of.scores, of.labels);
    metric_at<ClassificationMetric>(metrics_, "multilabel").update(of.scores, of.labels);
    for (const char* const name : {"auroc", "auroc_micro", "average_precision"}) {
      metric_at<CurveMetric>(metrics_, name).update(of.scores, of.classes);
    }
    for (const char* const name : {"binary_auroc", "binary_average_precision"}) {
      metric_at<CurveMetric>(metrics_, name).update(of.scores, of.labels);
    }
  }
  // Another one with the same accumulators, as from a checkpoint.
  [[nodiscard]] All continued() const {
    All other;
    const std::vector<Metric*> from = metrics(), to = other.metrics();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::vector<Accumulator*> saved = from[i]->accumulators(), loaded = to[i]->accumulators();
      for (std::size_t k = 0; k < saved.size(); ++k) {
        if (saved[k]->has_updates()) loaded[k]->update(saved[k]->value());
      }
    }
    return other;
  }
  [[nodiscard]] at::Tensor results() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, metric] : metrics_) all.push_back(results_of(name, *metric));
    return at::cat(all);
  }
  [[nodiscard]] std::string names() const {
    std::string names;
    for (const auto& [name, metric] : metrics_) {
      for (const std::string& series : series_of(name, *metric)) names += series + " ";
    }
    return names;
  }
  void reset() {
    for (Metric* const each : metrics()) each->reset();
  }

 private:
  static MetricMap create() {
    const auto classes = [](Average average, const Statistic& statistic, std::int64_t top_k = 1) {
      return std::make_shared<ClassificationMetric>(
          MulticlassProblem{.num_classes = 3, .top_k = top_k, .average = average}, statistic, ZeroDivision::kNan);
    };
    const auto curves = [](const Curve& curve, std::optional<Average> average) {
      return std::make_shared<CurveMetric>(
          CurveMetricConfig{.num_classes = average ? 3 : 2, .num_bins = 20, .average = average}, curve);
    };
    return {{"sum", std::make_shared<SumMetric>()},
            {"mean", std::make_shared<MeanMetric>()},
            {"max", std::make_shared<MaxMetric>()},
            {"min", std::make_shared<MinMetric>()},
            {"perplexity", std::make_shared<PerplexityMetric>()},
            {"composed", std::make_shared<ComposeMetric>(MetricMap{{"count", std::make_shared<SumMetric>()},
                                                                   {"f1", classes(Average::kPerClass, f1)}})},
            {"accuracy", classes(Average::kMicro, accuracy)},
            {"recall", classes(Average::kMacro, recall)},
            {"precision_at_2", classes(Average::kWeighted, precision, 2)},
            {"binary", std::make_shared<ClassificationMetric>(BinaryProblem{.threshold = 0.3}, f_beta(2))},
            {"multilabel", std::make_shared<ClassificationMetric>(
                               MultilabelProblem{.num_labels = 3, .average = Average::kMacro}, accuracy)},
            {"auroc", curves(auroc, Average::kMacro)},
            {"auroc_micro", curves(auroc, Average::kMicro)},
            {"average_precision", curves(average_precision, Average::kPerClass)},
            {"binary_auroc", curves(auroc, std::nullopt)},
            {"binary_average_precision", curves(average_precision, std::nullopt)}};
  }

  MetricMap metrics_;
};

at::Tensor on_one_rank(int round) {
  All all;
  for (int i = 0; i < kMicrobatches; ++i) all.update(microbatch(i, round));
  return all.results();
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const All& all) {
  EXPECT_TRUE(at::allclose(found, expected, kRounding, kRounding, /*equal_nan=*/true))
      << all.names() << "\n"
      << at::stack({found, expected}, 1);
}

TEST(MetricLayouts, Continue_after_each_microbatch_as_if_nothing_had_been) {
  for (int round = 0; round < 4; ++round) {
    All all;
    for (int i = 0; i < kMicrobatches; ++i) {
      all.update(microbatch(i, round));
      all = all.continued();
    }
    expect_equal(all.results(), on_one_rank(round), all);
  }
}

TEST(MetricLayouts, Have_the_results_of_one_rank) {
  for (const std::int64_t num_ranks : {1, 2, 3, 5}) {
    run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
      const DeviceMesh ranks("all", {{"dp", num_ranks}}, borrowed(world));
      All all;
      for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < kMicrobatches; ++i) {  // the last of many ranks has none, the first most
          if (i * i % (num_ranks + 1) % num_ranks == world.rank()) all.update(microbatch(i, round));
          if (round % 2 == 1) all = all.continued();
        }
        reduce_metrics(all.metrics(), ranks);
        expect_equal(all.results(), on_one_rank(round), all);
        all.reset();
      }
    });
  }
}

// Ranks of "cp" have parts of the same samples: what counts by token adds up.
TEST(MetricLayouts, Add_up_the_tokens_of_ranks_that_share_sequences) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh ranks("all", {{"dp", 2}, {"cp", 2}}, borrowed(world));
    const std::int64_t dp = ranks.axis_coordinate("dp"), cp = ranks.axis_coordinate("cp");
    All all;
    for (int i = 0; i < kMicrobatches; ++i) {
      if (i % 2 != dp) continue;
      const Microbatch whole = microbatch(i, 0);
      const auto part = [&](const at::Tensor& of) { return of.slice(0, cp, std::nullopt, 2); };
      all.update({.scores = part(whole.scores), .labels = part(whole.labels), .classes = part(whole.classes)});
    }
    reduce_metrics(all.metrics(), ranks);
    expect_equal(all.results(), on_one_rank(0), all);
  });
}

// Sixteen metrics, and four.
TEST(MetricLayouts, Communicate_once_for_each_op) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    std::vector<std::string> operations;
    const DeviceMesh ranks("all", {{"dp", 2}}, recording(world, operations));
    All all;
    LastMetric first, second;
    ThroughputMetric throughput;
    SumMetric sum;
    std::vector<Metric*> metrics = all.metrics();
    metrics.insert(metrics.end(), {&first, &second, &throughput, &sum});
    ASSERT_EQ(metrics.size(), 20U);
    reduce_metrics(metrics, ranks);
    EXPECT_EQ(operations, std::vector<std::string>(3, "all_reduce"));
  });
}

}  // namespace
}  // namespace d9d::test::metric_layouts_test
