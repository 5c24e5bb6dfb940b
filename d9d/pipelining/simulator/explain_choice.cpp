#include "d9d/pipelining/simulator/explain_choice.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d::detail {
namespace {

std::string name_of(const ScheduleCandidate& candidate) { return schedule_of(candidate.schedule).name; }

void print_row(std::ostream& out, const ScheduleCandidate& candidate, bool is_best) {
  out << (is_best ? "* " : "  ") << std::left << std::setw(30) << name_of(candidate) << std::right << std::setw(5)
      << candidate.num_microbatches << std::setw(12) << candidate.makespan << std::setw(9)
      << 100 * candidate.bubble_fraction << " %" << std::setw(13) << candidate.peak_bytes
      << (candidate.fits ? "" : "  more than fits") << '\n';
}

// Prints the time of the longest stage relative to the mean, and the virtual layers that would shorten the step.
void print_balance(std::ostream& out, const ScheduleRequest& request, const ScheduleChoice& choice) {
  const auto& best = choice.best;
  const auto option = std::ranges::find(request.microbatches, best.num_microbatches, &MicrobatchOption::count);
  const auto num_stages = schedule_of(best.schedule).placement(request.num_ranks).num_stages();
  const auto stages = stage_costs(*option, best, num_stages);
  const auto time_of = [](const StageCosts& stage) { return stage.forward + stage.backward; };
  double sum = 0;
  for (const auto& stage : stages) sum += time_of(stage);
  const auto longest = std::ranges::max_element(stages, {}, time_of);
  if (sum > 0) {
    out << "Stage " << longest - stages.begin() << " of " << num_stages << " takes "
        << time_of(*longest) * static_cast<double>(num_stages) / sum << " times the mean.\n";
  }
  if (option->model.layers.empty()) return;
  if (!choice.balanced) {
    out << "No other virtual layers that fit make the step shorter.\n";
    return;
  }
  out << "With num_virtual_layers_pre = " << choice.balanced->num_virtual_layers_pre
      << " and num_virtual_layers_post = " << choice.balanced->num_virtual_layers_post << " the step takes "
      << choice.balanced->makespan << ", " << 100 * (1 - choice.balanced->makespan / best.makespan) << " % less.\n";
}

}  // namespace

std::string explain(const ScheduleRequest& request, const ScheduleChoice& choice) {
  std::ostringstream out;
  out << std::setprecision(4);
  const auto& best = choice.best;
  out << name_of(best) << " with " << best.num_microbatches << " microbatches: a step of " << best.makespan
      << ", of which ranks wait " << 100 * best.bubble_fraction << " %; a rank keeps at most " << best.peak_bytes;
  if (request.max_bytes) out << " of " << *request.max_bytes;
  out << ".\n  " << std::left << std::setw(30) << "schedule" << std::right << std::setw(5) << "M" << std::setw(12)
      << "step" << std::setw(11) << "bubble" << std::setw(13) << "keeps" << '\n';
  bool is_first = true;
  for (const auto& candidate : choice.candidates) {
    const bool is_best = is_first && candidate.fits;
    if (is_best) is_first = false;
    print_row(out, candidate, is_best);
  }
  out << "Schedules that are not listed are longer even if no rank ever waits, or cannot run here.\n";
  print_balance(out, request, choice);
  return out.str();
}

}  // namespace d9d::detail
