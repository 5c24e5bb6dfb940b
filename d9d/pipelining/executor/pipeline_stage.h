// The interface of a stage to the executor of a pipeline. A transfer, whatever its type, is passed as the list of its
// tensors: only the stage knows what they mean. The training loop implements this interface in
// loop/step/training_stage.h.
//
// Example
//   class Layers final : public PipelineStage {
//     std::vector<at::Tensor> transfer(MicrobatchIndex, StageBoundary) const override {
//       return {at::empty({batch, sequence, hidden}, at::TensorOptions(at::kMeta).dtype(at::kFloat))};
//     }
//     std::vector<at::Tensor> forward(MicrobatchIndex, const std::vector<at::Tensor>& arrived, bool) override {
//       return {layers(arrived.front())};
//     }
//   };
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/backward_part.h"
#include "d9d/pipelining/api/stage_boundary.h"
#include "d9d/pipelining/program/action.h"

namespace d9d {

class PipelineStage {
 public:
  virtual ~PipelineStage();

  // Returns the shapes and dtypes of a microbatch's transfer over a boundary, as tensors on the meta device. Called
  // before the microbatch's forward, on both sides of each boundary between stages; both sides must return the same.
  [[nodiscard]] virtual std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const = 0;

  // arrived: the transfer of the stage before, empty on the first stage. In a program with a backward its
  // floating-point and complex tensors require gradients. Returns the transfer to the next stage. The last stage
  // returns one scalar, the loss, whose gradient is 1, or nothing in a program without a backward. backward_follows:
  // the next computation of this rank is B or I of this microbatch.
  //
  // Where PipelineExecutor::runs_at_once() is true, forward and the microbatch's backward are called on one of two
  // streams, while another stage computes on the other stream. Tensors that were allocated for other streams and that
  // only the autograd graph would keep alive, such as the inputs of a first stage, must then live until the end of the
  // run.
  [[nodiscard]] virtual std::vector<at::Tensor> forward(MicrobatchIndex microbatch,
                                                        const std::vector<at::Tensor>& arrived,
                                                        bool backward_follows) = 0;

  // Called before and after forward in every run. With graphs (program_graphs.h) forward itself is called only in the
  // run that records it, and the compute() that backward() gets replays a graph in later runs.
  virtual void begin_forward(MicrobatchIndex microbatch);
  virtual void end_forward(MicrobatchIndex microbatch);

  // Returns the leaves whose gradients I may defer to W (core/autograd/deferred_gradients.h). If there are none, I
  // computes all gradients, and W has nothing to do. Called once a run if the program splits backwards.
  [[nodiscard]] virtual std::vector<at::Tensor> weights() const;

  // Must call compute() once, which runs the backward of forward's outputs, or the given part of it. is_last: the
  // gradients of the stage's weights are complete afterwards.
  virtual void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                        const std::function<void()>& compute);

  // Called after each backward(), on the stream on which PipelineExecutor::run() was called, while no other computation
  // runs.
  virtual void after_backward(MicrobatchIndex microbatch, BackwardPart part);
};

}  // namespace d9d
