#include "d9d/pipelining/executor/pipeline_stage.h"

namespace d9d {

PipelineStage::~PipelineStage() = default;

void PipelineStage::begin_forward(MicrobatchIndex /*microbatch*/) {}

void PipelineStage::end_forward(MicrobatchIndex /*microbatch*/) {}

std::vector<at::Tensor> PipelineStage::weights() const { return {}; }

void PipelineStage::backward(MicrobatchIndex /*microbatch*/, BackwardPart /*part*/, bool /*is_last*/,
                             const std::function<void()>& compute) {
  compute();
}

void PipelineStage::after_backward(MicrobatchIndex /*microbatch*/, BackwardPart /*part*/) {}

}  // namespace d9d
