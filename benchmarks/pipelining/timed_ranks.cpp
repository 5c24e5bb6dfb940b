// How much longer than its simulation a step of each schedule takes where computing is a wait of known length and ranks
// are threads: what the executor, its messages and its order cost by themselves, for more ranks than there are devices.
// Markdown.
//
//   pipelining_timed_benchmark benchmarks/pipelining/timed_ranks.json [mesh.pipeline_parallel=4] [milliseconds=50]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/config/describe.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/launch/launch.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/choose_schedule.h"
#include "d9d/pipelining/simulator/simulate.h"

#include "benchmarks/pipelining/longest_of_ranks.h"

namespace benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct TimedConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  double milliseconds = 1;  // of F, I and W of all stages of a rank together, each
  std::int64_t num_microbatches = 1;
  std::int64_t max_stages_per_rank = 2;
  std::int64_t num_steps = 5;

  static constexpr auto fields() {
    using Config = TimedConfig;
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
                               d9d::required("milliseconds", &Config::milliseconds, d9d::greater_than(0)),
                               d9d::required("num_microbatches", &Config::num_microbatches, d9d::at_least(1)),
                               d9d::defaulted("max_stages_per_rank", &Config::max_stages_per_rank, d9d::at_least(1)),
                               d9d::defaulted("num_steps", &Config::num_steps, d9d::at_least(1)));
  }
};

// x, in some seconds; so are the gradient of x and that of the weight, which may wait.
struct Timed : torch::autograd::Function<Timed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& /*weight*/, double seconds) {
    context->saved_data["seconds"] = seconds;
    std::this_thread::sleep_for(Seconds(seconds));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const double seconds = context->saved_data["seconds"].toDouble();
    std::this_thread::sleep_for(Seconds(seconds));
    const std::array reads = {gradients[0]};
    const auto product = [seconds](std::span<const at::Tensor> tensors, const auto& place) {
      std::this_thread::sleep_for(Seconds(seconds));
      if (!place) return tensors[0].sum();
      place->put(tensors[0].sum());
      return at::Tensor();
    };
    return {gradients[0], d9d::make_gradient(1, reads, product), at::Tensor()};
  }
};

class TimedStage final : public d9d::PipelineStage {
 public:
  TimedStage(d9d::StageIndex index, std::int64_t num_stages, double seconds)
      : index_(index), num_stages_(num_stages), seconds_(seconds) {}

  std::vector<at::Tensor> transfer(d9d::MicrobatchIndex, d9d::StageBoundary) const override {
    return {at::empty({4}, at::TensorOptions(at::kMeta).dtype(at::kFloat))};
  }
  std::vector<at::Tensor> forward(d9d::MicrobatchIndex, const std::vector<at::Tensor>& arrived, bool) override {
    const at::Tensor input = arrived.empty() ? at::ones({4}).requires_grad_() : arrived.front();
    const at::Tensor made = Timed::apply(input, weight_, seconds_);
    return {index_.value + 1 == num_stages_ ? made.sum() : made};
  }
  std::vector<at::Tensor> weights() const override { return {weight_}; }

 private:
  const d9d::StageIndex index_;
  const std::int64_t num_stages_;
  const double seconds_;
  at::Tensor weight_ = at::ones({}).requires_grad_();
};

// Seconds, sorted.
std::vector<double> timed_steps(const d9d::DeviceMesh& pipeline, std::int64_t num_steps,
                                const std::function<void()>& step) {
  std::vector<double> seconds;
  for (std::int64_t i = -1; i < num_steps; ++i) {  // the first does not count
    (void)d9d::all_gather_object(nullptr, pipeline);
    const auto begin = Clock::now();
    step();
    if (i >= 0) seconds.push_back(Seconds(Clock::now() - begin).count());
  }
  return longest_of_ranks(std::move(seconds), pipeline);
}

void run(const TimedConfig& config, const d9d::DistContext& context) {
  const d9d::DeviceMesh pipeline = context.mesh(d9d::MeshDomain::kRegular).slice({"pp"});
  const auto print = [&](const std::string& line) {
    if (context.is_main_process()) std::cout << line << std::endl;
  };
  print(d9d::cat(
      "P = ", pipeline.num_ranks(), ", M = ", config.num_microbatches, ", F, I and W of a rank ", config.milliseconds,
      " ms each\n\n| schedule | simulated ms | step ms (least..most) | over the simulation |\n", "|---|---|---|---|"));
  for (const auto& choice : d9d::training_schedules(config.max_stages_per_rank)) {
    const d9d::PipelineSchedule schedule = d9d::schedule_of(choice);
    d9d::PipelineExecutor executor(context, schedule);
    const std::int64_t num_stages = executor.placement().num_stages();
    const double seconds =
        config.milliseconds / 1e3 * static_cast<double>(pipeline.num_ranks()) / static_cast<double>(num_stages);
    const d9d::PipelineCosts costs{
        .stages = {
            {.forward = seconds, .backward = 2 * seconds, .backward_input = seconds, .backward_weight = seconds}}};
    const d9d::PipelineProgram program = d9d::build_program(schedule, pipeline.num_ranks(), config.num_microbatches);
    const double simulated = d9d::simulate(program, {.costs = costs}).makespan;
    std::vector<TimedStage> stages;
    for (const d9d::StageIndex index : executor.stages()) stages.emplace_back(index, num_stages, seconds);
    std::vector<d9d::PipelineStage*> borrowed;
    for (TimedStage& stage : stages) borrowed.push_back(&stage);
    const auto steps =
        timed_steps(pipeline, config.num_steps, [&] { executor.run(borrowed, config.num_microbatches); });
    const double median = steps[steps.size() / 2];
    char line[256];
    std::snprintf(line, sizeof line, "| %s | %.1f | %.1f (%.1f..%.1f) | %+.1f %% |", schedule.name.c_str(),
                  1e3 * simulated, 1e3 * median, 1e3 * steps.front(), 1e3 * steps.back(),
                  100 * (median / simulated - 1));
    print(line);
  }
}

}  // namespace
}  // namespace benchmarks

int main(int argc, char** argv) { return d9d::launch<benchmarks::TimedConfig>(argc, argv, benchmarks::run); }
