#include "d9d/metrics/classification/classification_metric.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"
#include "d9d/metrics/classification/curve_metric.h"

#include "tests/support/python.h"

namespace d9d::test::classification_metric_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor integers(std::initializer_list<std::int64_t> values) { return at::tensor(values, at::kLong); }

// ---- scikit-learn ----

constexpr double kRounding = 1e-12;  // quotients of counts, and means of a few of them
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Quotient specificity(const ConfusionCounts& counts) { return {counts.tn, counts.tn + counts.fp}; }

struct Inputs {
  std::string problem;
  at::Tensor scores, targets;
};

nlohmann::json json_of(const at::Tensor& tensor) {
  if (tensor.dim() == 0 && tensor.is_floating_point()) return tensor.item<double>();
  if (tensor.dim() == 0) return tensor.item<std::int64_t>();
  nlohmann::json list = nlohmann::json::array();
  for (const at::Tensor& each : tensor.unbind(0)) list.push_back(json_of(each));
  return list;
}

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}
  // Uniform in [0, 1), in steps of 1 / `steps` that begin at half a step.
  at::Tensor scores(at::IntArrayRef shape, int steps) {
    at::Tensor result = at::empty(shape, at::kDouble);
    auto* const first = result.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < result.numel(); ++i) {
      first[i] = (0.5 + static_cast<double>(std::uniform_int_distribution<>(0, steps - 1)(engine_))) / steps;
    }
    return result;
  }
  at::Tensor classes(at::IntArrayRef shape, const std::vector<std::int64_t>& of) {
    at::Tensor result = at::empty(shape, at::kLong);
    auto* const first = result.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < result.numel(); ++i) {
      first[i] = of[std::uniform_int_distribution<std::size_t>(0, of.size() - 1)(engine_)];
    }
    return result;
  }

 private:
  std::mt19937 engine_;
};

constexpr int kFine = 1 << 30;  // no ties

// Random inputs, and such that a class is missing among the targets, among the predictions, or alone among them.
std::vector<Inputs> all_inputs() {
  Draw draw(1);
  std::vector<Inputs> inputs;
  for (const std::vector<std::int64_t>& labels : {std::vector<std::int64_t>{0, 1}, {0, 0, 0, 1}, {0}, {1}}) {
    inputs.push_back({"binary", draw.scores({50}, kFine), draw.classes({50}, labels)});
    inputs.push_back({"multilabel", draw.scores({30, 3}, kFine), draw.classes({30, 3}, labels)});
  }
  inputs.push_back({"binary", at::zeros({9}, at::kDouble), draw.classes({9}, {0, 1})});  // no prediction
  inputs.push_back({"binary", at::zeros({1}, at::kDouble), at::zeros({1}, at::kLong)});
  at::Tensor one_sided = draw.scores({30, 4}, kFine), one_label = draw.classes({30, 4}, {0, 1});
  one_sided.select(1, 1).zero_();
  one_label.select(1, 2).zero_();
  inputs.push_back({"multilabel", one_sided, one_label});
  for (const std::int64_t num_classes : {2, 3, 7}) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(num_classes));
    std::iota(all.begin(), all.end(), 0);
    inputs.push_back({"multiclass", draw.scores({60, num_classes}, kFine), draw.classes({60}, all)});
    inputs.push_back({"multiclass", draw.scores({20, num_classes}, kFine), draw.classes({20}, {0})});
    at::Tensor never = draw.scores({40, num_classes}, kFine);
    never.select(1, 1).zero_();  // is never predicted
    inputs.push_back({"multiclass", never, draw.classes({40}, all)});
    inputs.push_back({"multiclass", never, draw.classes({40}, {0, num_classes - 1})});  // nor occurs
    inputs.push_back({"multiclass", draw.scores({1, num_classes}, kFine), at::zeros({1}, at::kLong)});
  }
  return inputs;
}

ClassificationProblem problem_of(const Inputs& inputs, Average average, double threshold, std::int64_t top_k) {
  if (inputs.problem == "binary") return BinaryProblem{.threshold = threshold};
  const std::int64_t num = inputs.scores.size(1);
  if (inputs.problem == "multilabel")
    return MultilabelProblem{.num_labels = num, .threshold = threshold, .average = average};
  return MulticlassProblem{.num_classes = num, .top_k = top_k, .average = average};
}

// Cases of scikit-learn, each with what a metric says of it.
struct Cases {
  nlohmann::json inputs = nlohmann::json::array(), cases = nlohmann::json::array();
  std::vector<at::Tensor> found;

  void add_inputs(const Inputs& each) {
    inputs.push_back({{"problem", each.problem}, {"scores", json_of(each.scores)}, {"targets", json_of(each.targets)}});
  }
  void add(nlohmann::json of, Metric& metric) {
    of["inputs"] = inputs.size() - 1;
    cases.push_back(std::move(of));
    found.push_back(metric.compute().reshape({-1}));
  }
  void expect_equal() const {
    const std::string file =
        ::testing::TempDir() + "d9d_" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
    std::ofstream(file) << nlohmann::json{{"inputs", inputs}, {"cases", cases}};
    const auto expected =
        nlohmann::json::parse(run_python("tests/metrics/classification/scikit_learn_oracle.py", {file}));
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      std::vector<double> values;
      for (const auto& value : expected[i]) values.push_back(value.is_null() ? kNan : value.get<double>());
      const at::Tensor wanted = at::tensor(values, at::kDouble);
      EXPECT_TRUE(wanted.sizes() == found[i].sizes() &&
                  at::allclose(found[i], wanted, 0, kRounding, /*equal_nan=*/true))
          << cases[i] << "\nexpected " << wanted << "\ngot " << found[i];
    }
  }
};

const std::vector<std::pair<std::string, Average>> kAverages = {{"micro", Average::kMicro},
                                                                {"macro", Average::kMacro},
                                                                {"weighted", Average::kWeighted},
                                                                {"per_class", Average::kPerClass}};

TEST(ClassificationMetric, Is_what_scikit_learn_says_for_all_tasks_statistics_averages_and_zero_divisions) {
  const std::vector<std::pair<std::string, Statistic>> statistics = {{"accuracy", accuracy},
                                                                     {"one_vs_rest_accuracy", one_vs_rest_accuracy},
                                                                     {"precision", precision},
                                                                     {"recall", recall},
                                                                     {"f1", f1},
                                                                     {"f2", f_beta(2)},
                                                                     {"f0.5", f_beta(0.5)},
                                                                     {"specificity", specificity}};
  const std::vector<std::pair<nlohmann::json, ZeroDivision>> zero_divisions = {
      {0, ZeroDivision::kZero}, {1, ZeroDivision::kOne}, {nullptr, ZeroDivision::kNan}};
  Cases cases;
  for (const Inputs& inputs : all_inputs()) {
    cases.add_inputs(inputs);
    for (const auto& [statistic_name, statistic] : statistics) {
      for (const auto& [average_name, average] : kAverages) {
        if (inputs.problem == "binary" && average != Average::kMicro) continue;
        for (const auto& [zero, zero_division] : zero_divisions) {
          for (const int variant : {1, 2, 3}) {  // thresholds, or the number of predicted classes
            if (inputs.problem == "multiclass" && variant >= inputs.scores.size(1)) continue;
            const double threshold = 0.25 * variant;
            ClassificationMetric metric(problem_of(inputs, average, threshold, variant), statistic, zero_division);
            for (std::int64_t i = 0; i < inputs.scores.size(0); i += 7) {
              metric.update(inputs.scores.slice(0, i, i + 7), inputs.targets.slice(0, i, i + 7));
            }
            cases.add({{"statistic", statistic_name},
                       {"average", average_name},
                       {"zero_division", zero},
                       {"threshold", threshold},
                       {"top_k", variant}},
                      metric);
          }
        }
      }
    }
  }
  EXPECT_GT(cases.found.size(), 4000U);
  cases.expect_equal();
}

TEST(CurveMetric, Is_what_scikit_learn_says_of_scores_in_bins) {
  constexpr int kBins = 64;
  const std::vector<std::pair<std::string, Curve>> curves = {{"auroc", auroc},
                                                             {"average_precision", average_precision}};
  Draw draw(2);
  Cases cases;
  for (const std::vector<std::int64_t>& labels : {std::vector<std::int64_t>{0, 1}, {0, 0, 0, 1}, {0}, {1}}) {
    for (const std::int64_t num_samples : {1, 2, 300}) {  // 300: with ties
      const Inputs inputs{"binary", draw.scores({num_samples}, kBins), draw.classes({num_samples}, labels)};
      cases.add_inputs(inputs);
      for (const auto& [name, curve] : curves) {
        CurveMetric metric({.num_bins = kBins}, curve);
        for (std::int64_t i = 0; i < num_samples; i += 7) {
          metric.update(inputs.scores.slice(0, i, i + 7), inputs.targets.slice(0, i, i + 7));
        }
        cases.add({{"curve", name}}, metric);
      }
    }
  }
  for (const std::vector<std::int64_t>& labels : {std::vector<std::int64_t>{0, 1, 2, 3}, {0, 0, 0, 1, 3}, {2}}) {
    const Inputs inputs{"multiclass", draw.scores({200, 4}, kBins), draw.classes({200}, labels)};
    cases.add_inputs(inputs);
    for (const auto& [name, curve] : curves) {
      for (const auto& [average_name, average] : kAverages) {
        CurveMetric metric({.num_classes = 4, .num_bins = kBins, .average = average}, curve);
        metric.update(inputs.scores, inputs.targets);
        cases.add({{"curve", name}, {"average", average_name}}, metric);
      }
    }
  }
  cases.expect_equal();
}

// ---- shapes, names and refusals ----

double value_of(const Metric& metric) { return metric.compute().item<double>(); }

TEST(ClassificationMetric, Takes_samples_of_any_shape) {
  const at::Tensor scores = at::tensor({0.9, 0.1, 0.8, 0.3}, at::kDouble), labels = integers({1, 1, 0, 0});
  ClassificationMetric flat(BinaryProblem{}, accuracy), square(BinaryProblem{}, accuracy);
  flat.update(scores, labels);
  square.update(scores.view({2, 2}), labels.view({2, 2}).to(at::kBool));
  EXPECT_EQ(value_of(flat), 0.5);
  EXPECT_EQ(value_of(square), 0.5);
  ClassificationMetric classes(MulticlassProblem{.num_classes = 2, .average = Average::kMicro}, accuracy);
  classes.update(at::stack({1 - scores, scores}, -1).view({2, 2, 2}).requires_grad_(), labels.view({2, 2}));
  EXPECT_EQ(value_of(classes), 0.5);
  EXPECT_FALSE(classes.compute().requires_grad());
}

TEST(ClassificationMetric, Leaves_out_ignored_targets) {
  ClassificationMetric metric(MulticlassProblem{.num_classes = 2, .average = Average::kMicro}, accuracy);
  metric.update(at::eye(2).repeat({2, 1}), integers({0, kIgnoreIndex, 1, kIgnoreIndex}));
  EXPECT_EQ(value_of(metric), 0.5);
}

TEST(ClassificationMetric, Says_no_at_the_threshold_and_for_NaN) {
  ClassificationMetric metric(BinaryProblem{.threshold = 0.5}, recall);
  metric.update(at::tensor({0.5, kNan, 0.75}, at::kDouble), integers({1, 1, 1}));
  EXPECT_DOUBLE_EQ(value_of(metric), 1.0 / 3);
}

TEST(ClassificationMetric, Compares_with_the_threshold_in_the_dtype_of_the_scores) {
  ClassificationMetric metric(BinaryProblem{.threshold = 0.1}, accuracy);
  metric.update(at::full({1}, 0.1, at::kFloat), integers({0}));  // in float64 that float is above 0.1
  EXPECT_EQ(metric.compute().item<double>(), 1);
}

TEST(ClassificationMetric, Is_NaN_after_a_target_that_is_no_class) {
  const MultilabelProblem labels{.num_labels = 2, .average = Average::kMacro};
  const MulticlassProblem classes{.num_classes = 3, .average = Average::kMicro};
  const auto value = [](const ClassificationProblem& problem, const at::Tensor& scores, const at::Tensor& targets) {
    ClassificationMetric metric(problem, f1, ZeroDivision::kNan);
    metric.update(scores, targets);
    return metric.compute().item<double>();
  };
  for (const double target : {-1.0, 0.5, 3.0, kNan}) {
    EXPECT_TRUE(std::isnan(value(BinaryProblem{}, at::ones({2}), at::tensor({1.0, target})))) << target;
    EXPECT_TRUE(std::isnan(value(labels, at::ones({1, 2}), at::tensor({1.0, target}).view({1, 2})))) << target;
    EXPECT_TRUE(std::isnan(value(classes, at::eye(3), at::tensor({0.0, 1.0, target})))) << target;
  }
  EXPECT_EQ(value(BinaryProblem{}, at::ones({2}), integers({1, kIgnoreIndex})), 1);
  EXPECT_EQ(value(classes, at::eye(3), integers({0, 1, kIgnoreIndex})), 1);
}

TEST(ClassificationMetric, Counts_more_samples_than_float_can) {
  ClassificationMetric metric(BinaryProblem{}, accuracy);
  metric.accumulators()[0]->update(at::tensor({0x1p53 - 4, 0.0, 0.0, 0.0}, at::kDouble).view({4, 1}));
  for (int i = 0; i < 3; ++i) metric.update(at::ones({1}), integers({1}));
  EXPECT_EQ(metric.counts().tp.item<double>(), 0x1p53 - 1);
}

TEST(ClassificationMetric, Names_its_classes) {
  const auto names = [](const std::vector<std::string>& classes, Average average) {
    return ClassificationMetric(MulticlassProblem{.num_classes = 3, .average = average, .class_names = classes}, f1)
        .result_names();
  };
  EXPECT_THAT(names({"a", "b", "c"}, Average::kPerClass), ElementsAre("a", "b", "c"));
  EXPECT_THAT(names({}, Average::kPerClass), ElementsAre("0", "1", "2"));
  EXPECT_THAT(names({"a", "b", "c"}, Average::kMacro), ElementsAre(""));
  EXPECT_THAT([&] { (void)names({"a"}, Average::kPerClass); },
              ThrowsMessage<StateError>(HasSubstr("expected 3 names of classes, got 1")));
}

TEST(ClassificationMetric, Is_refused_without_what_it_needs) {
  const auto refusal = [](const ClassificationProblem& problem, const Statistic& statistic) {
    try {
      const ClassificationMetric metric(problem, statistic);
      return std::string("none");
    } catch (const StateError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refusal(MulticlassProblem{.num_classes = 3}, f1), HasSubstr("of 3 classes, got none. Set average"));
  EXPECT_THAT(refusal(MultilabelProblem{.num_labels = 3}, f1), HasSubstr("of 3 classes, got none. Set average"));
  EXPECT_THAT(refusal(MulticlassProblem{.num_classes = 1, .average = Average::kMicro}, f1),
              HasSubstr("two or more classes or labels, got 1"));
  EXPECT_THAT(refusal(MulticlassProblem{.num_classes = 3, .top_k = 4, .average = Average::kMicro}, f1),
              HasSubstr("a top_k from 1 to num_classes = 3, got 4"));
  EXPECT_THAT(refusal(BinaryProblem{}, nullptr), HasSubstr("a statistic of the counts, got null"));
}

TEST(ClassificationMetric, Refuses_other_shapes) {
  ClassificationMetric binary(BinaryProblem{}, f1);
  ClassificationMetric classes(MulticlassProblem{.num_classes = 3, .average = Average::kMicro}, f1);
  ClassificationMetric labels(MultilabelProblem{.num_labels = 3, .average = Average::kMicro}, f1);
  EXPECT_THROW(binary.update(at::ones({2}), at::ones({3})), StateError);
  EXPECT_THROW(classes.update(at::ones({2, 2}), at::ones({2})), StateError);
  EXPECT_THROW(classes.update(at::ones({2, 3}), at::ones({3})), StateError);
  EXPECT_THROW(labels.update(at::ones({2, 2}), at::ones({2, 2})), StateError);
  EXPECT_THROW(labels.update(at::ones({2, 3}), at::ones({2})), StateError);
}

}  // namespace
}  // namespace d9d::test::classification_metric_test
