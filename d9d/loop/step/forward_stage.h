// A stage of this rank as the pipeline executor runs it without gradients, for evaluation and inference. It does not
// call the gradient protocol, so it leaves no trace in training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

namespace d9d {

// The microbatches of one pack.
struct ForwardPack {
  std::string name = {};   // "pack 2 of the evaluation set 'validation'", for errors
  std::int64_t index = 0;  // of the pack, counted from 0
  MicrobatchPack microbatches = {};
  // The first so many count. The others are computed because other ranks have more, and their results are dropped.
  std::size_t num_counted = 0;
};

// Runs `work` and adds the microbatch and the pack to its errors.
template <class Work>
auto in_microbatch_of(const ForwardPack& pack, std::size_t index, const std::string& place, const Work& work) {
  try {
    return with_error_place(place, work);
  } catch (const std::exception&) {
    add_error_place(cat("microbatch ", index, " of ", pack.name));
    throw;
  }
}

class ForwardStage : public PipelineStage {
 public:
  // All arguments are borrowed. is_last_of_rank: no later stage of this rank uses a microbatch's inputs.
  ForwardStage(RandomClock& clock, const AnyModelStage& stage, bool is_last_of_rank, ForwardPack& pack)
      : clock_(clock), stage_(stage), is_last_of_rank_(is_last_of_rank), pack_(pack) {}

  [[nodiscard]] std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override;
  [[nodiscard]] std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                bool backward_follows) override;
  void begin_forward(MicrobatchIndex microbatch) override;
  void end_forward(MicrobatchIndex microbatch) override;

 protected:
  // Runs the last stage and does what follows from its output. counts: false for a microbatch whose results are
  // dropped.
  virtual void run_last(const AnyModelStage& stage, AnyMicrobatch& microbatch, const std::vector<at::Tensor>& arrived,
                        bool counts) = 0;

 private:
  [[nodiscard]] AnyMicrobatch& at(MicrobatchIndex microbatch) const {
    return *pack_.microbatches[static_cast<std::size_t>(microbatch.value)];
  }

  RandomClock& clock_;
  const AnyModelStage& stage_;
  const bool is_last_of_rank_;
  ForwardPack& pack_;
};

// Runs the microbatches of `pack`, which may have none, through the stages of this rank. Collective over the pipeline.
// Stage: a ForwardStage, whose constructor takes `more` after the arguments of ForwardStage's.
template <class Stage, class... More>
void run_forwards(PipelineExecutor& executor, RandomClock& clock,
                  const std::vector<std::shared_ptr<AnyModelStage>>& stages, ForwardPack& pack, const More&... more) {
  if (pack.microbatches.empty()) return;
  std::vector<Stage> run;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    run.emplace_back(clock, *stages[i], /*is_last_of_rank=*/i + 1 == stages.size(), pack, more...);
  }
  std::vector<PipelineStage*> borrowed;
  for (Stage& stage : run) borrowed.push_back(&stage);
  executor.run(borrowed, std::ssize(pack.microbatches));
}

}  // namespace d9d
