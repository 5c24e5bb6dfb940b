// What a stage computes, as the executor of a pipeline calls it. A transfer, whatever its type, is the list of its
// tensors: only the stage knows what they mean.
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

  // Shapes and dtypes of a microbatch's transfer: tensors on the meta device. Asked for inner boundaries only, on each
  // side of a boundary, before the microbatch's forward; both sides must say the same.
  [[nodiscard]] virtual std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const = 0;

  // arrived: the transfer of the stage before, empty on the first stage; in a program with a backward its floating and
  // complex tensors require gradients. Returns the transfer to the next stage. On the last stage of a program with a
  // backward: one scalar, the loss, whose gradient is 1; of one without, nothing. backward_follows: the microbatch's B
  // or I is the next computation of the rank, so that what forward makes for it waits for nothing else.
  //
  // Where PipelineExecutor::runs_at_once() says so, it is called with one of two streams as the current one, and so is
  // the microbatch's backward, while another stage computes on the other. Tensors of other streams, such as the inputs
  // of a first stage, that only the graph would keep alive must then live until the end of the run.
  [[nodiscard]] virtual std::vector<at::Tensor> forward(MicrobatchIndex microbatch,
                                                        const std::vector<at::Tensor>& arrived,
                                                        bool backward_follows) = 0;

  // Called before and after forward. Where graphs replay computations (program_graphs.h) they are called in each run,
  // and forward, like the backward's compute(), only when it is recorded.
  virtual void begin_forward(MicrobatchIndex microbatch);
  virtual void end_forward(MicrobatchIndex microbatch);

  // The leaves whose gradients I may leave to W (core/autograd/deferred_gradients.h). None: I makes all gradients, and
  // W has nothing to do. Asked for once a run, where a program splits backwards.
  [[nodiscard]] virtual std::vector<at::Tensor> weights() const;

  // Calls compute() once: the backward of what forward returned, or the part of it. is_last: the stage's gradients of
  // weights are complete afterwards.
  virtual void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                        const std::function<void()>& compute);

  // Called after each of them, on the executor's stream, when nothing runs beside it any more.
  virtual void after_backward(MicrobatchIndex microbatch, BackwardPart part);
};

}  // namespace d9d
