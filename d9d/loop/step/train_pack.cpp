#include "d9d/loop/step/train_pack.h"

#include <cstdint>
#include <span>

namespace d9d {
namespace {

// While it lives, drawing random numbers from the clock throws: a replay would draw the same numbers again.
class Capturing {
 public:
  Capturing(RandomClock& clock, bool captures) : clock_(clock) { clock_.is_captured = captures; }
  ~Capturing() { clock_.is_captured = false; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

 private:
  RandomClock& clock_;
};

void run_microbatches(PipelineExecutor& executor, const std::vector<PipelineStage*>& stages, StepMicrobatches& step,
                      StepGraphs* graphs, RandomClock& clock, std::size_t first, std::size_t size) {
  step.first = first;
  step.is_last_run = first + size == step.pack.size();
  step.graph = nullptr;
  if (graphs != nullptr) {
    std::vector<std::vector<bool>> received;
    for (std::size_t i = 0; i < stages.size(); ++i) received.push_back(step.gradients->received(i));
    step.graph = graphs->begin(std::span(step.pack).subspan(first, size), received);
  }
  step.keeps_inputs = step.graph != nullptr || executor.runs_at_once(static_cast<std::int64_t>(size));
  const Capturing capturing(clock, step.graph != nullptr && !step.graph->is_captured());
  executor.run(stages, static_cast<std::int64_t>(size), step.graph == nullptr ? nullptr : &*step.graph->program);
}

}  // namespace

// With graphs the microbatches of a model in one stage are run one by one, each by the graphs of its own kind.
void train_pack(PipelineExecutor& executor, const std::vector<PipelineStage*>& stages, StepMicrobatches& step,
                StepGraphs* graphs, RandomClock& clock) {
  step.losses.assign(step.pack.size(), {});
  if (graphs == nullptr || executor.placement().num_stages() > 1) {
    run_microbatches(executor, stages, step, graphs, clock, 0, step.pack.size());
  } else {
    for (std::size_t i = 0; i < step.pack.size(); ++i) run_microbatches(executor, stages, step, graphs, clock, i, 1);
  }
  if (graphs != nullptr) graphs->end_step();
}

}  // namespace d9d
