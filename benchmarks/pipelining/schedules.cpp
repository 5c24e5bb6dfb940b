// What a step takes beside its simulation, with stages that compute the same and costs measured under load: every
// schedule, over copies and over NCCL, and in what the two differ. Markdown.
//
//   pipelining_benchmark benchmarks/pipelining/schedules.json [tokens=128] [traces=runs/pipelining]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/allocated_bytes.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/rng/element_random.h"
#include "d9d/pipelining/executor/measure_links.h"
#include "d9d/pipelining/executor/measure_stage.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/simulator/choose_schedule.h"
#include "d9d/pipelining/simulator/chrome_trace.h"
#include "d9d/pipelining/simulator/plot_svg.h"

#include "benchmarks/pipelining/equal_stage.h"
#include "benchmarks/pipelining/longest_of_ranks.h"
#include "benchmarks/pipelining/schedules_config.h"
#include "benchmarks/pipelining/step_parts.h"

namespace benchmarks {
namespace {

using d9d::cat;
using d9d::ExchangeMethod;

// One schedule over one kind of messages. Seconds.
struct Row {
  d9d::PipelineScheduleConfig schedule;
  std::string name;
  ExchangeMethod messages;
  d9d::PipelineProgram program;
  d9d::PipelineCosts costs;
  d9d::Simulation simulated = {};
  std::vector<double> steps = {};  // sorted; of the rank that takes longest
  d9d::Simulation recorded = {};   // the step of median length
};

std::string text(const char* format, auto... values) {
  char line[512];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

// Of as many stages each. Of links the last.
d9d::PipelineCosts mean_of(const std::vector<d9d::PipelineCosts>& all) {
  d9d::PipelineCosts mean = all.back();
  for (std::size_t stage = 0; stage < mean.stages.size(); ++stage) {
    using Costs = d9d::StageCosts;
    for (const auto cost : {&Costs::forward, &Costs::backward, &Costs::backward_input, &Costs::backward_weight}) {
      double sum = 0;
      for (const d9d::PipelineCosts& one : all) sum += one.stages[stage].*cost;
      mean.stages[stage].*cost = sum / static_cast<double>(all.size());
    }
  }
  return mean;
}

class Benchmark {
 public:
  Benchmark(const SchedulesConfig& config, const d9d::DistContext& context)
      : config_(config),
        context_(context),
        pipeline_(context.mesh(d9d::MeshDomain::kRegular).slice({"pp"})),
        barrier_(pipeline_.communicator(d9d::Traffic::kGradients)),  // not the one that carries messages
        recorder_{.device = context.device()} {
    const at::TensorOptions on_device(context.device());
    inputs_.hidden_states =
        at::empty({1, config.tokens, config.layer.hidden_size}, on_device.dtype(d9d::to_scalar_type(config.dtype)));
    d9d::fill_normal(inputs_.hidden_states, d9d::whole_window(inputs_.hidden_states), {.key = 1}, 0, 1);
    inputs_.position_ids = at::arange(config.tokens, on_device.dtype(at::kLong)).unsqueeze(0);
  }

  void run() {
    print(cat("P = ", pipeline_.num_ranks(), ", M = ", config_.num_microbatches, ", ", config_.num_layers,
              " layers of hidden size ", config_.layer.hidden_size, ", ", config_.tokens, " tokens a microbatch, ",
              d9d::enum_name(config_.dtype), "\n\n",
              "| schedule | messages | simulated ms | step ms (p10..p90) | over the simulation | simulated bubble | "
              "bubble | F / B / I / W of a stage, ms |\n|---|---|---|---|---|---|---|---|"));
    const auto schedules =
        config_.schedules.empty() ? d9d::training_schedules(config_.max_stages_per_rank) : config_.schedules;
    for (const auto& schedule : schedules) {
      if (const std::string reason = why_not(schedule); !reason.empty()) {
        print(cat("<!-- ", reason, " -->"));
        continue;
      }
      for (const ExchangeMethod messages : config_.messages) {
        rows_.push_back(measured(schedule, messages));
        print_row(rows_.back());
        write_traces(rows_.back());
      }
    }
    print_parts();
    for (const ExchangeMethod messages : config_.messages) print_choice(messages);
  }

 private:
  void print(const std::string& line) const {
    if (context_.is_main_process()) std::cout << line << std::endl;
  }

  [[nodiscard]] d9d::PipelineProgram program_of(const d9d::PipelineScheduleConfig& schedule) const {
    const d9d::StageLinksConfig links;
    return d9d::build_program(d9d::schedule_of(schedule), pipeline_.num_ranks(), config_.num_microbatches,
                              {.num_inbox_slots = links.num_inbox_slots});
  }

  // Empty where the schedule can run.
  [[nodiscard]] std::string why_not(const d9d::PipelineScheduleConfig& schedule) const {
    try {
      const std::int64_t num_stages = program_of(schedule).stages.num_stages();
      if (config_.num_layers % num_stages == 0) return "";
      return cat(d9d::schedule_of(schedule).name, ": num_layers is not a multiple of ", num_stages, " stages");
    } catch (const d9d::ConfigError& error) {
      return error.what();
    }
  }

  // Those of so many stages in all, made once.
  const std::vector<d9d::ModulePtr<d9d::Qwen3DenseModel>>& layers_of(std::int64_t num_stages) {
    auto& own = layers_[num_stages];
    while (std::ssize(own) < num_stages / pipeline_.num_ranks()) {
      own.push_back(inner_layers(config_.layer.parameters(), config_.num_layers / num_stages, config_.tokens,
                                 inputs_.hidden_states.scalar_type(), context_.device()));
    }
    return own;
  }

  // All ranks begin a step at the same time, and no host waits for a GPU: as after the norm of gradients.
  void begin_together() {
    const at::Tensor one = at::ones({1}, inputs_.hidden_states.options().dtype(at::kFloat));
    barrier_->all_reduce(one, d9d::ReduceOp::kSum).wait();
  }

  Row measured(const d9d::PipelineScheduleConfig& schedule, ExchangeMethod messages) {
    Row row{.schedule = schedule,
            .name = d9d::schedule_of(schedule).name,
            .messages = messages,
            .program = program_of(schedule)};
    const d9d::StageLinksConfig links{.method = messages};
    d9d::PipelineExecutor executor(context_, d9d::schedule_of(schedule), links);
    const std::int64_t num_stages = executor.placement().num_stages();
    std::vector<EqualStage> stages;
    for (std::size_t i = 0; i < executor.stages().size(); ++i) {
      stages.emplace_back(layers_of(num_stages)[i], inputs_, recorder_, executor.stages()[i], num_stages);
    }
    std::vector<d9d::PipelineStage*> borrowed;
    for (EqualStage& stage : stages) borrowed.push_back(&stage);
    const auto step = [&] { executor.run(borrowed, config_.num_microbatches); };

    for (std::int64_t i = 0; i < config_.num_warm_up_steps; ++i) step();
    const d9d::PipelineCosts before = measured_costs(stages, links);
    step();
    row.steps = timed_steps(step);
    row.recorded = recorded(row.program, step);
    row.costs = mean_of({before, measured_costs(stages, links)});  // clocks change slowly
    row.simulated = d9d::simulate(row.program, {.costs = row.costs, .num_inbox_slots = links.num_inbox_slots});
    return row;
  }

  // All ranks compute while one is measured, and just before.
  d9d::PipelineCosts measured_costs(std::vector<EqualStage>& stages, const d9d::StageLinksConfig& links) {
    nlohmann::json own = nlohmann::json::array();
    const d9d::LinkCosts link = measured_link(stages.front(), links);
    for (EqualStage& stage : stages) {
      begin_together();
      const bool is_first = stage.index().value == 0;
      const d9d::StageCosts costs = d9d::measure_stage(
          stage, {.arrived = is_first ? std::vector<at::Tensor>() : std::vector{inputs_.hidden_states},
                  .is_last = stage.is_last(),
                  .device = context_.device(),
                  .num_repeats = config_.num_repeats});
      own.push_back({stage.index().value, costs.forward, costs.backward, costs.backward_input, costs.backward_weight,
                     costs.activation_bytes, costs.deferred_bytes});
    }
    const auto gathered = d9d::all_gather_object({{"stages", own}, {"link", {link.latency, link.time}}}, pipeline_);
    d9d::PipelineCosts costs;
    costs.stages.resize(stages.size() * gathered.size());
    for (const nlohmann::json& of_rank : gathered) {
      for (const nlohmann::json& one : of_rank.at("stages")) {
        costs.stages.at(one[0].get<std::size_t>()) = {one[1], one[2], one[3], one[4], one[5], one[6]};
      }
      const d9d::LinkCosts of_link{.latency = of_rank.at("link")[0], .time = of_rank.at("link")[1]};
      if (of_link.latency + of_link.time > costs.link.latency + costs.link.time) costs.link = of_link;
    }
    return costs;
  }

  // Beside forwards on another stream.
  d9d::LinkCosts measured_link(EqualStage& stage, const d9d::StageLinksConfig& links) {
    constexpr int kForwards = 8;  // less than a GPU can have queued
    d9d::LinkSample sample{.num_repeats = config_.num_repeats};
    const std::int64_t rank = pipeline_.index();
    const std::vector<at::Tensor> like = stage.transfer({0}, d9d::StageBoundary::kOutgoing);
    if (rank > 0) sample.from_before = like;
    if (rank + 1 < pipeline_.num_ranks()) sample.to_next = like;
    const d9d::SideStream beside(context_.device());
    const d9d::StreamEvent done = beside.run([&] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < kForwards && context_.device().is_cuda(); ++i) {
        (void)stage.forward({0}, {inputs_.hidden_states}, /*backward_follows=*/false);
      }
    });
    const d9d::LinkCosts link = d9d::measure_links(context_, links, sample);
    done.wait();
    return link;
  }

  std::vector<double> timed_steps(const std::function<void()>& step) {
    std::vector<std::pair<d9d::Moment, d9d::Moment>> spans;
    for (std::int64_t i = 0; i < config_.num_steps; ++i) {
      begin_together();
      const d9d::Moment begin(context_.device());
      step();
      spans.emplace_back(begin, d9d::Moment(context_.device()));
    }
    std::vector<double> seconds;
    for (const auto& [begin, end] : spans) seconds.push_back(begin.seconds_until(end));
    return longest_of_ranks(std::move(seconds), pipeline_);
  }

  d9d::Simulation recorded(const d9d::PipelineProgram& program, const std::function<void()>& step) {
    recorder_.steps.clear();
    recorder_.is_on = true;
    for (std::int64_t i = 0; i < config_.num_recorded_steps; ++i) {
      begin_together();
      recorder_.begin_step();
      step();
    }
    recorder_.is_on = false;
    std::vector<d9d::Simulation> steps;
    for (const RecordedStep& each : recorder_.steps) {
      steps.push_back(recorded_step(program, d9d::all_gather_object(spans_of(each), pipeline_)));
    }
    std::ranges::sort(steps, {}, &d9d::Simulation::makespan);
    return steps[steps.size() / 2];
  }

  void print_row(const Row& row) const {
    d9d::StageCosts mean{0, 0, 0, 0, 0, 0};
    for (const d9d::StageCosts& stage : row.costs.stages) {
      const double weight = 1e3 / static_cast<double>(row.costs.stages.size());
      mean.forward += weight * stage.forward, mean.backward += weight * stage.backward;
      mean.backward_input += weight * stage.backward_input, mean.backward_weight += weight * stage.backward_weight;
    }
    const double median = quantile(row.steps, 0.5);
    print(text("| %s | %s | %.2f | %.2f (%.2f..%.2f) | %+.1f %% | %.4f | %.4f | %.3f / %.3f / %.3f / %.3f |",
               row.name.c_str(), std::string(d9d::enum_name(row.messages)).c_str(), 1e3 * row.simulated.makespan,
               1e3 * median, 1e3 * quantile(row.steps, 0.1), 1e3 * quantile(row.steps, 0.9),
               100 * (median / row.simulated.makespan - 1), row.simulated.bubble_fraction(),
               row.recorded.bubble_fraction(), mean.forward, mean.backward, mean.backward_input, mean.backward_weight));
  }

  void print_parts() const {
    std::string head =
        "\nThe recorded step of median length beside the simulation, ms, means over the ranks:\n\n"
        "| schedule | messages | recorded | longer than simulated |";
    for (const char* const name : StepParts::kComputations) head += cat(" ", name, " |");
    head +=
        " waits for messages (simulated) | between computations (simulated) | waits for the last rank (simulated) | "
        "computing of each rank (simulated) | us of a message: latency, time |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";
    print(head);
    for (const Row& row : rows_) {
      const StepParts recorded = parts_of(row.program, row.recorded);
      const StepParts simulated = parts_of(row.program, row.simulated);
      std::string line =
          text("| %s | %s | %.2f | %+.2f |", row.name.c_str(), std::string(d9d::enum_name(row.messages)).c_str(),
               1e3 * row.recorded.makespan, 1e3 * (row.recorded.makespan - row.simulated.makespan));
      for (std::size_t i = 0; i < recorded.computing.size(); ++i) {
        line += text(" %+.2f |", 1e3 * (recorded.computing[i] - simulated.computing[i]));
      }
      for (const auto part : {&StepParts::waits, &StepParts::between, &StepParts::end}) {
        line += text(" %.2f (%.2f) |", 1e3 * (recorded.*part), 1e3 * (simulated.*part));
      }
      for (std::size_t rank = 0; rank < recorded.of_ranks.size(); ++rank) {
        line += text("%s%.2f (%.2f)", rank == 0 ? " " : ", ", 1e3 * recorded.of_ranks[rank],
                     1e3 * simulated.of_ranks[rank]);
      }
      print(line + text(" | %.1f, %.1f |", 1e6 * row.costs.link.latency, 1e6 * row.costs.link.time));
    }
  }

  // Of the schedules that were measured. Costs of stages are means over all rows with as many.
  void print_choice(ExchangeMethod messages) const {
    d9d::ScheduleRequest request{.num_ranks = pipeline_.num_ranks()};
    std::map<std::int64_t, std::vector<d9d::PipelineCosts>> costs;
    for (const Row& row : rows_) {
      costs[std::ssize(row.costs.stages)].push_back(row.costs);
      if (row.messages != messages) continue;
      request.schedules.push_back(row.schedule);
      request.link = row.costs.link;
    }
    if (request.schedules.empty()) return;
    d9d::MicrobatchOption option{.count = config_.num_microbatches};
    for (const auto& [num_stages, measured] : costs) option.stages[num_stages] = mean_of(measured).stages;
    request.microbatches = {option};
    const d9d::ScheduleCandidate best = d9d::choose_schedule(request).best;
    const std::string name = d9d::schedule_of(best.schedule).name;
    const Row& row =
        *std::ranges::find_if(rows_, [&](const Row& each) { return each.messages == messages && each.name == name; });
    print(text("\nThe choice with %s: %s, simulated %.2f ms with a bubble of %.4f, measured %.2f ms with %.4f.",
               std::string(d9d::enum_name(messages)).c_str(), name.c_str(), 1e3 * best.makespan, best.bubble_fraction,
               1e3 * quantile(row.steps, 0.5), row.recorded.bubble_fraction()));
  }

  void write_traces(const Row& row) const {
    if (config_.traces.empty() || !context_.is_main_process()) return;
    std::filesystem::create_directories(config_.traces);
    std::string name = cat(row.name, "_", d9d::enum_name(row.messages));
    std::erase_if(name, [](char c) { return c == ' ' || c == ',' || c == '='; });
    const auto path = [&](const char* what) { return config_.traces / cat(name, what); };
    d9d::write_file_atomically(path("_simulated.json"), d9d::chrome_trace(row.simulated, row.costs, 1e6));
    d9d::write_file_atomically(path("_recorded.json"), d9d::chrome_trace(row.recorded, row.costs, 1e6));
    d9d::write_file_atomically(path(".svg"),
                               d9d::plot_svg({{.title = cat(row.name, ", simulated"), .run = row.simulated},
                                              {.title = cat(row.name, ", recorded"), .run = row.recorded}},
                                             {.time_unit = "s", .memory = false}));
  }

  const SchedulesConfig& config_;
  const d9d::DistContext& context_;
  const d9d::DeviceMesh pipeline_;
  const std::shared_ptr<d9d::Communicator> barrier_;
  StepRecorder recorder_;
  StageInputs inputs_;
  std::map<std::int64_t, std::vector<d9d::ModulePtr<d9d::Qwen3DenseModel>>> layers_;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace benchmarks

int main(int argc, char** argv) {
  using benchmarks::SchedulesConfig;
  return d9d::launch<SchedulesConfig>(argc, argv, [](const SchedulesConfig& config, d9d::DistContext& context) {
    const d9d::AllocatedBytes observed(
        context.device());  // measure_stage() observes, and what it frees was made before
    benchmarks::Benchmark(config, context).run();
  });
}
