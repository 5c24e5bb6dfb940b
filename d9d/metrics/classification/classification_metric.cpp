#include "d9d/metrics/classification/classification_metric.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/metrics/classification/class_results.h"

namespace d9d {
namespace {

// What a problem says of its results.
struct Classes {
  std::int64_t num = 1;
  std::optional<Average> average;
  std::vector<std::string> names;
};

Classes checked(const Classes& classes) {
  D9D_CHECK(classes.num >= 2, StateError, "[metrics] expected two or more classes or labels, got ", classes.num,
            ". Set num_classes or num_labels; BinaryProblem is for one label.");
  D9D_CHECK(classes.average.has_value(), StateError, "[metrics] expected an average of the statistic of ", classes.num,
            " classes, got none. Set average to Average::kMicro, kMacro, kWeighted or kPerClass.");
  return classes;
}

Classes classes_in(const BinaryProblem& /*problem*/) { return {.num = 1, .average = Average::kMicro, .names = {}}; }

Classes classes_in(const MulticlassProblem& problem) {
  const auto& [num_classes, top_k, average, names] = problem;
  D9D_CHECK(top_k >= 1 && top_k <= num_classes, StateError,
            "[metrics] expected a top_k from 1 to num_classes = ", num_classes, ", got ", top_k,
            ". Set how many classes are predicted of a sample.");
  return checked({.num = num_classes, .average = average, .names = names});
}

Classes classes_in(const MultilabelProblem& problem) {
  return checked({.num = problem.num_labels, .average = problem.average, .names = problem.label_names});
}

void check_scores(const at::Tensor& scores, std::int64_t num_classes) {
  D9D_CHECK(scores.dim() > 0 && scores.size(-1) == num_classes, StateError, "[metrics] expected scores [..., ",
            num_classes, "], got ", scores.sizes(), ". Give a score for each class in the last dim.");
}

// Counts of [C] as [4, C] fp64, NaN if there is a target that is no class.
at::Tensor rows_of(const ConfusionCounts& counts, const at::Tensor& targets, std::int64_t num_classes) {
  return at::stack({counts.tp, counts.fp, counts.tn, counts.fn}) + nan_of_wrong(targets, num_classes);
}

at::Tensor count(const BinaryProblem& problem, const at::Tensor& scores, const at::Tensor& targets) {
  const auto counts = count_labels(scores.gt(problem.threshold).unsqueeze(-1), targets.unsqueeze(-1));
  return rows_of(counts, targets, /*num_classes=*/2);
}

at::Tensor count(const MulticlassProblem& problem, const at::Tensor& scores, const at::Tensor& targets) {
  check_scores(scores, problem.num_classes);
  const at::Tensor classes = classes_of(targets, scores);
  const auto counts = count_classes(top_classes(scores, problem.top_k), classes, problem.num_classes);
  return rows_of(counts, classes, problem.num_classes);
}

at::Tensor count(const MultilabelProblem& problem, const at::Tensor& scores, const at::Tensor& targets) {
  check_scores(scores, problem.num_labels);
  return rows_of(count_labels(scores.gt(problem.threshold), targets), targets, /*num_classes=*/2);
}

}  // namespace

ClassificationMetric::ClassificationMetric(ClassificationProblem problem, Statistic statistic,
                                           ZeroDivision zero_division)
    : problem_(std::move(problem)), statistic_(std::move(statistic)), zero_division_(zero_division) {
  D9D_CHECK(statistic_ != nullptr, StateError,
            "[metrics] expected a statistic of the counts, got null. Give accuracy, precision, recall, f1 or another.");
  const Classes classes = std::visit([](const auto& each) { return classes_in(each); }, problem_);
  average_ = *classes.average;
  names_ = detail::result_names(classes.num, average_, classes.names);
  counts_ = Accumulator({4, classes.num});
}

void ClassificationMetric::update(const at::Tensor& scores, const at::Tensor& targets) {
  counts_.update(std::visit([&](const auto& problem) { return count(problem, scores.detach(), targets); }, problem_));
}

ConfusionCounts ClassificationMetric::counts() const {
  const at::Tensor rows = counts_.value();
  return {.tp = rows[0],
          .fp = rows[1],
          .tn = rows[2],
          .fn = rows[3],
          .one_of_several = std::holds_alternative<MulticlassProblem>(problem_)};
}

at::Tensor ClassificationMetric::compute() const {
  return statistic_of(counts(), statistic_, average_, zero_division_);
}

}  // namespace d9d
