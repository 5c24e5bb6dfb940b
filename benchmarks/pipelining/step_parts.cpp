#include "benchmarks/pipelining/step_parts.h"

#include <algorithm>
#include <map>

#include "d9d/pipelining/program/transfer.h"

namespace benchmarks {
namespace {

// Time in which at least one of the computations runs, in any order.
double busy_time(std::vector<std::pair<double, double>> spans) {
  std::ranges::sort(spans);
  double busy = 0, covered = 0;
  for (const auto& [begin, end] : spans) {
    busy += std::max(0.0, end - std::max(begin, covered));
    covered = std::max(covered, end);
  }
  return busy;
}

bool uses_message(const d9d::ComputeAction& action, const d9d::StagePlacement& stages) {
  const auto input = d9d::input_of(action, stages.num_stages());
  return input && d9d::link_of(*input, stages);
}

}  // namespace

nlohmann::json spans_of(const RecordedStep& step) {
  nlohmann::json spans = nlohmann::json::object();
  for (const RecordedSpan& span : step.spans) {
    spans[d9d::to_text(span.action)] = {step.begin.seconds_until(span.begin), step.begin.seconds_until(span.end)};
  }
  return spans;
}

d9d::Simulation recorded_step(const d9d::PipelineProgram& program, const std::vector<nlohmann::json>& of_ranks) {
  d9d::Simulation run{.num_ranks = program.stages.num_ranks()};
  for (std::int64_t rank = 0; rank < run.num_ranks; ++rank) {
    const nlohmann::json& spans = of_ranks.at(static_cast<std::size_t>(rank));
    std::vector<d9d::ComputeSpan> own;
    for (const d9d::Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
      for (const d9d::ComputeAction& part : d9d::compute_parts(action)) {
        const nlohmann::json& span = spans.at(d9d::to_text(part));
        own.push_back({.action = part,
                       .rank = rank,
                       .start = span.at(0).get<double>(),
                       .end = span.at(1).get<double>(),
                       .is_composed = d9d::holds<d9d::ComposedAction>(action)});
        run.makespan = std::max(run.makespan, own.back().end);
      }
    }
    std::ranges::stable_sort(own, {}, &d9d::ComputeSpan::start);  // of composed ones a backward may begin first
    run.computations.insert(run.computations.end(), own.begin(), own.end());
  }
  return run;
}

StepParts parts_of(const d9d::PipelineProgram& program, const d9d::Simulation& run) {
  std::map<d9d::ComputeAction, std::pair<double, double>> spans;
  for (const d9d::ComputeSpan& span : run.computations) spans[span.action] = {span.start, span.end};
  StepParts sum;
  for (const d9d::RankProgram& actions : program.ranks) {
    double last_end = 0;
    double& computing = sum.of_ranks.emplace_back(0);
    for (const d9d::Action& action : actions) {
      const auto parts = d9d::compute_parts(action);
      if (parts.empty()) continue;
      std::vector<std::pair<double, double>> own;
      for (const d9d::ComputeAction& part : parts) own.push_back(spans.at(part));
      const double begin = std::ranges::min(own).first;
      const double end = std::ranges::max(own, {}, &std::pair<double, double>::second).second;
      const bool waits =
          std::ranges::any_of(parts, [&](const auto& part) { return uses_message(part, program.stages); });
      const double busy = busy_time(std::move(own));
      (waits ? sum.waits : sum.between) += begin - last_end;
      sum.between += end - begin - busy;
      sum.computing.at(parts.size() > 1 ? StepParts::kComputations.size() - 1 : parts.front().index()) += busy;
      computing += busy;
      last_end = end;
    }
    sum.end += run.makespan - last_end;
  }
  const auto num_ranks = static_cast<double>(program.ranks.size());
  for (double& seconds : sum.computing) seconds /= num_ranks;
  for (double* const seconds : {&sum.waits, &sum.between, &sum.end}) *seconds /= num_ranks;
  return sum;
}

}  // namespace benchmarks
