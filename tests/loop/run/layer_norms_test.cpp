// The norms that a job logs by layer are those of plain autograd, on every layout, and together give the norm of all
// gradients.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"
#include "tests/loop/run/toy_values.h"

namespace d9d::test::layer_norms_test {
namespace {

using pipeline::PipelineJob;
using pipeline::Trained;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;

using Norms = std::map<std::string, double>;

bool is_of_layer(const std::string& series) {
  return series.starts_with("grad_norm/") || series.starts_with("param_norm/");
}

// ---- Plain autograd. ----

void add_square(Norms& squares, const std::string& series, const at::Tensor& values) {
  squares[series] += values.detach().square().sum().item<double>();
}

// The norms of the gradient of the mean error of a pack, and of the parameters.
Norms norms_by_hand(const toy::Model& model, const std::vector<toy::Batch>& pack) {
  std::map<std::string, at::Tensor> leaf;
  for (const auto& [name, parameter] : model.named_parameters()) {
    leaf[name] = parameter->stored().detach().clone().requires_grad_();
  }
  at::Tensor error = at::zeros({}, at::kDouble), weight = at::zeros({}, at::kDouble);
  for (const toy::Batch& batch : pack) {
    const at::Tensor hidden = at::tanh(at::linear(batch.x, leaf["first.weight"], leaf["first.bias"]));
    const at::Tensor output = at::linear(hidden, leaf["second.weight"], leaf["second.bias"]);
    error = error + ((output - batch.y).square() * batch.weights).sum();
    weight = weight + batch.weights.sum();
  }
  (error / weight).backward();
  Norms norms;
  for (const auto& [name, values] : leaf) {
    const std::string layer = name.substr(0, name.find('.'));
    if (values.grad().defined()) add_square(norms, "grad_norm/" + layer, values.grad());
    add_square(norms, "param_norm/" + layer, values);
  }
  for (auto& [series, norm] : norms) norm = std::sqrt(norm);
  return norms;
}

struct ObservingTask : toy::Task {
  explicit ObservingTask(const toy::Provider& of_job) : provider(of_job) {}
  void register_events(const DistContext& context, EventBus& events) override {
    toy::Task::register_events(context, events);
    events.subscribe(kTrainForwardBackwardPre, [this](const TrainStep& step) {
      const auto index = static_cast<std::size_t>(step.schedule.current_step());
      expected.push_back(norms_by_hand(*provider.model, provider.packs[index]));
    });
  }
  const toy::Provider& provider;
  std::vector<Norms> expected;  // of each step
};

Norms logged_norms(const nlohmann::json& line) {
  Norms norms;
  for (const auto& [series, value] : line.items()) {
    if (is_of_layer(series)) norms[series] = value.is_number() ? value.get<double>() : std::nan("");
  }
  return norms;
}

TEST(LayerNorms, Are_those_of_plain_autograd_before_clipping) {
  toy::Job job({{toy::samples(0, 2), toy::samples(2, 3)}, {toy::samples(5, 2)}, {toy::samples(7, 1)}});
  job.config.logging.norms_by_layer = {EverySteps{1}};
  job.config.gradient_clipping.max_norm = 1e-3;
  ObservingTask task(job.provider);
  (void)job.make_trainer(job.context, task).train();
  const auto lines = toy::Job::logged();
  ASSERT_EQ(lines.size(), 3U);
  for (std::size_t step = 0; step < lines.size(); ++step) {
    const Norms actual = logged_norms(lines[step]), &expected = task.expected[step];
    ASSERT_THAT(actual, SizeIs(4));
    for (const auto& [series, norm] : expected) {
      EXPECT_NEAR(actual.at(series), norm, tolerance("fp64").value * norm) << series << " of step " << step;
    }
  }
}

TEST(LayerNorms, Of_a_step_that_is_skipped_are_what_was_measured) {
  toy::Batch weightless = toy::samples(2, 2);
  weightless.weights.zero_();
  toy::Job job({{toy::samples(0, 2)}, {toy::poisoned()}, {weightless}});
  job.config.logging.norms_by_layer = {EverySteps{1}};
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  job.train();
  const auto lines = toy::Job::logged();
  for (const char* const layer : {"first", "second"}) {
    const std::string gradient = cat("grad_norm/", layer), parameter = cat("param_norm/", layer);
    EXPECT_GT(lines[0][gradient].get<double>(), 0);
    EXPECT_EQ(lines[1][gradient], "NaN");
    EXPECT_EQ(lines[2][gradient], 0);
    EXPECT_EQ(lines[2][parameter], lines[1][parameter]);
  }
}

TEST(LayerNorms, Are_logged_at_their_own_period) {
  const auto steps_of = [](const StepActionPeriod& period) {
    toy::Job job({{toy::samples(0, 2)}, {toy::samples(2, 2)}, {toy::samples(4, 2)}});
    job.config.logging.norms_by_layer = period;
    job.train();
    std::vector<std::int64_t> steps;
    for (const auto& line : toy::Job::logged()) {
      if (!logged_norms(line).empty()) steps.push_back(line["step"]);
    }
    return steps;
  };
  EXPECT_THAT(steps_of(LoggingConfig().norms_by_layer), ElementsAre());
  EXPECT_THAT(steps_of({EverySteps{2}}), ElementsAre(1));
  EXPECT_THAT(steps_of({StepActionMode::kLastStep}), ElementsAre(2));
}

// ---- Layouts. ----

std::vector<std::string> series_of_layers(const Trained& trained) {
  std::vector<std::string> names;
  for (const auto& [name, values] : pipeline::series_of(trained)) {
    if (is_of_layer(name)) names.push_back(name);
  }
  return names;
}

// The squares of the gradient norms of a step's layers add up to that of the whole.
void expect_sum(const Trained& trained) {
  for (const nlohmann::json& line : trained.logged) {
    double square = 0;
    for (const auto& [series, norm] : logged_norms(line)) {
      if (series.starts_with("grad_norm/")) square += norm * norm;
    }
    const auto norm = line.at("grad_norm").get<double>();
    EXPECT_NEAR(std::sqrt(square), norm, tolerance("fp64").value * norm);
  }
}

Trained train_with_norms(PipelineJob job) {
  job.logs_layer_norms = true;
  return pipeline::train(job);
}

void expect_as_in_one_piece(PipelineJob job, const std::vector<DeviceMeshParameters>& meshes) {
  const Trained expected = train_with_norms(job);
  expect_sum(expected);
  for (const DeviceMeshParameters& mesh : meshes) {
    for (const PipelineScheduleConfig& schedule :
         {PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(OneFOneBScheduleConfig{})}) {
      if (mesh.pipeline_parallel == 1 && !std::holds_alternative<OneFOneBScheduleConfig>(schedule)) continue;
      SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", mesh.pipeline_parallel, " of ", mesh.world_size()));
      job.mesh = mesh;
      job.schedule = schedule;
      const Trained actual = train_with_norms(job);
      pipeline::expect_same_series(actual, expected);
      EXPECT_EQ(series_of_layers(actual), series_of_layers(expected));
      expect_sum(actual);
    }
  }
}

TEST(LayerNorms, Are_those_of_one_piece_on_every_layout) {
  expect_as_in_one_piece({}, {{.data_parallel_shard = 2},
                              {.data_parallel_replicate = 2},
                              {.tensor_parallel = 2},
                              {.pipeline_parallel = 2},
                              {.pipeline_parallel = 4},
                              {.pipeline_parallel = 2, .data_parallel_shard = 2},
                              {.pipeline_parallel = 2, .tensor_parallel = 2}});
}

TEST(LayerNorms, Of_experts_are_those_of_one_piece) {
  expect_as_in_one_piece({.has_experts = true},
                         {{.data_parallel_replicate = 2, .expert_parallel = 2},
                          {.data_parallel_shard = 4, .expert_parallel = 2},
                          {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2}});
}

TEST(LayerNorms, Count_a_tied_embedding_once) {
  const PipelineJob job{.ties_embeddings = true};
  EXPECT_THAT(series_of_layers(train_with_norms(job)),
              AllOf(Contains("param_norm/model.embed_tokens"), Not(Contains("param_norm/head.lm_head"))));
  expect_as_in_one_piece(
      job, {{.pipeline_parallel = 2}, {.pipeline_parallel = 2, .data_parallel_shard = 2}, {.pipeline_parallel = 4}});
}

TEST(LayerNorms, Of_what_is_frozen_are_those_of_its_parameters) {
  const PipelineJob job{.freezes_first = true};
  EXPECT_THAT(series_of_layers(train_with_norms(job)),
              AllOf(Contains("param_norm/model.embed_tokens"), Contains("param_norm/model.layers.1"),
                    Contains("grad_norm/model.layers.2"), Not(Contains("grad_norm/model.layers.1")),
                    Not(Contains("grad_norm/model.embed_tokens"))));
  expect_as_in_one_piece(job, {{.data_parallel_shard = 2}, {.pipeline_parallel = 2}});
}

TEST(LayerNorms, Are_those_of_each_layer_and_of_what_is_outside_of_layers) {
  std::vector<std::string> expected;
  for (const char* const kind : {"grad_norm/", "param_norm/"}) {
    expected.push_back(cat(kind, "head.lm_head"));
    expected.push_back(cat(kind, "model.embed_tokens"));
    for (int layer = 0; layer < 8; ++layer) expected.push_back(cat(kind, "model.layers.", layer));
    expected.push_back(cat(kind, "model.norm"));
  }
  EXPECT_EQ(
      series_of_layers(train_with_norms({.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}})),
      expected);
}

}  // namespace
}  // namespace d9d::test::layer_norms_test
