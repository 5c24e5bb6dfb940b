// A stage of this rank in an inference: the last stage gives its output to InferenceTask::process_outputs.
#pragma once

#include <vector>

#include "d9d/loop/step/forward_stage.h"

namespace d9d {

class InferenceStage final : public ForwardStage {
 public:
  using ForwardStage::ForwardStage;

 private:
  void run_last(const AnyModelStage& stage, AnyMicrobatch& microbatch, const std::vector<at::Tensor>& arrived,
                bool counts) override {
    microbatch.process(stage, arrived, counts);
  }
};

}  // namespace d9d
