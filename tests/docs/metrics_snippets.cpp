// Code that is shown in docs/metrics.md but not part of a program: compiled with the library, never run.
// tools/check_snippets.py checks that the page agrees with it.
#include <iostream>
#include <memory>

#include <ATen/ATen.h>

#include "d9d/base/ignore_index.h"
#include "d9d/loop/task/task.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/classification/classification_metric.h"
#include "d9d/metrics/classification/curve_metric.h"
#include "d9d/metrics/compose_metric.h"
#include "d9d/metrics/perplexity_metric.h"
#include "d9d/metrics/reduce_metrics.h"

namespace metric_pages {

struct TopicState {
  at::Tensor probabilities, topics;  // [B, 3], [B]
  at::Tensor cross_entropy, labels;  // [B, S]
  static constexpr auto fields() {
    return d9d::record<TopicState>(
        d9d::field("probabilities", &TopicState::probabilities), d9d::field("topics", &TopicState::topics),
        d9d::field("cross_entropy", &TopicState::cross_entropy), d9d::field("labels", &TopicState::labels));
  }
};

struct Types {
  using Batch = TopicState;
  using Input = at::Tensor;
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = TopicState;
};

struct Task : d9d::TrainTask<Types> {
  d9d::MetricMap create_metrics() override {
    const d9d::MulticlassProblem topics{
        .num_classes = 3, .average = d9d::Average::kPerClass, .class_names = {"art", "law", "sport"}};
    return {{"perplexity", std::make_shared<d9d::PerplexityMetric>()},
            {"topics", std::make_shared<d9d::ComposeMetric>(
                           d9d::MetricMap{{"f1", std::make_shared<d9d::ClassificationMetric>(topics, d9d::f1)},
                                          {"num", std::make_shared<d9d::SumMetric>()}})}};
  }
  void update_metrics(const State& state, const d9d::MetricMap& metrics) override {
    using d9d::metric_at;
    metric_at<d9d::PerplexityMetric>(metrics, "perplexity")
        .update(state.cross_entropy, state.labels != d9d::kIgnoreIndex);
    metric_at<d9d::ClassificationMetric>(metrics, "topics/f1").update(state.probabilities, state.topics);
    metric_at<d9d::SumMetric>(metrics, "topics/num").update(at::ones_like(state.topics));
  }
};

d9d::MetricMap count_documents() {
  return {{"num_tokens_seen", std::make_shared<d9d::SumMetric>()},
          {"num_documents", d9d::counted_by_sample(std::make_shared<d9d::SumMetric>())}};
}

void classify(const at::Tensor& probability, const at::Tensor& is_spam, const at::Tensor& scores,
              const at::Tensor& classes) {
  d9d::ClassificationMetric spam(d9d::BinaryProblem{.threshold = 0.9}, d9d::precision, d9d::ZeroDivision::kNan);
  spam.update(probability, is_spam);  // both [B]

  d9d::ClassificationMetric top5(
      d9d::MulticlassProblem{.num_classes = 1000, .top_k = 5, .average = d9d::Average::kMicro}, d9d::accuracy);
  top5.update(scores, classes);  // [B, 1000] and [B]

  d9d::CurveMetric area({}, d9d::auroc);
  area.update(probability, is_spam);
  std::cout << spam.compute() << top5.compute() << area.compute();
}

d9d::Quotient specificity(const d9d::ConfusionCounts& counts) { return {counts.tn, counts.tn + counts.fp}; }

std::shared_ptr<d9d::Metric> specificity_of_tags() {
  const d9d::MultilabelProblem tags{.num_labels = 9, .average = d9d::Average::kMacro};
  return std::make_shared<d9d::ClassificationMetric>(tags, specificity);
}

}  // namespace metric_pages
