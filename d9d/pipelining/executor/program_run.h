// One run of a rank's program. It owns the tensors that a microbatch keeps between its actions.
//
// Example
//   ProgramRun(placement, stages, links, &streams, /*graphs=*/nullptr, /*has_backward=*/true).run(plan);
//
// On one stream, composed computations run one after the other in the order of the program, and the outputs of the
// first are sent before the second begins. On two streams they run at the same time (compute_streams.h), and the
// backward is issued first: a forward may make the host wait, as the dispatch of experts does, and the device then has
// work.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/pipelining/executor/compute_streams.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/executor/program_graphs.h"
#include "d9d/pipelining/executor/stage_graph.h"
#include "d9d/pipelining/executor/stage_links.h"
#include "d9d/pipelining/executor/tensor_versions.h"
#include "d9d/pipelining/program/rank_plan.h"

namespace d9d {

class ProgramRun {
 public:
  // All arguments are borrowed. streams: null if everything runs on the current stream. graphs: null if none are used.
  ProgramRun(const StagePlacement& placement, const std::map<StageIndex, PipelineStage*>& stages, StageLinks& links,
             const ComputeStreams* streams, ProgramGraphs* graphs, bool has_backward);

  void run(const RankPlan& plan);

 private:
  using Leaves = std::vector<at::Tensor>;
  // A transfer that a stage of this rank has yet to use.
  struct Arrived {
    explicit Arrived(Leaves of_message, StreamEvent ready_at = {});
    Leaves leaves;
    StreamEvent ready;  // when a message received on another stream is complete
    TensorVersions versions;
  };
  // State of one microbatch on one stage from F until B or I. An F that is replayed from a graph sets only
  // gradients_like.
  struct Live {
    Leaves gradients_like = {};  // shapes and dtypes of the outputs that have gradients, on the meta device
    Leaves arrived = {};
    StageGraph graph = StageGraph({});
    at::TensorOptions loss_options = {};  // options of the loss; last stage only
  };
  using Key = std::pair<StageIndex, MicrobatchIndex>;

  using Steps = std::span<const PlannedStep>;  // the remaining steps

  void run_step(const PlannedStep& step, Steps& after);
  void run_computes(const std::vector<PlannedCompute>& parts, Steps& after);
  void send_made(const std::vector<PlannedCompute>& parts, Steps& after);
  void run_part(const PlannedCompute& part);
  void run_backward(const PlannedCompute& part);
  void forward(const PlannedCompute& part);
  [[nodiscard]] Leaves compute_forward(const PlannedCompute& part, Leaves arrived, const Leaves& announced, Live& live);
  void backward(const PlannedCompute& part);
  void weight_backward(const PlannedCompute& part);
  // Returns work(inputs). With graphs, records or replays it.
  [[nodiscard]] Leaves compute(const PlannedCompute& part, Leaves inputs, const ProgramGraphs::Work& work);
  void receive_through(const Transfer& transfer);
  void receive_next();
  void send(const Transfer& transfer);
  void store_output(const Transfer& transfer, Leaves leaves);
  [[nodiscard]] Leaves take_input(const Transfer& transfer);
  static void check_unmodified(const Transfer& transfer, const TensorVersions& versions);
  [[nodiscard]] Leaves like_of(const Transfer& transfer) const;
  static void check_announced(StageIndex stage, MicrobatchIndex microbatch, const Leaves& announced,
                              const Leaves& made);
  [[nodiscard]] Leaves input_gradients(StageIndex stage, MicrobatchIndex microbatch, const Leaves& arrived) const;
  [[nodiscard]] std::string place_of(const char* what, StageIndex stage, MicrobatchIndex microbatch) const;
  [[nodiscard]] bool is_first(StageIndex stage) const { return stage.value == 0; }
  [[nodiscard]] bool is_last_stage(StageIndex stage) const { return stage.value + 1 == placement_.num_stages(); }

  const StagePlacement& placement_;
  const std::map<StageIndex, PipelineStage*>& stages_;
  StageLinks& links_;
  const ComputeStreams* const streams_;
  ProgramGraphs* const graphs_;
  const bool has_backward_;
  std::map<Key, Live> live_;
  std::map<StageIndex, DeferredGradients> deferred_;    // for each stage that has run an I
  std::map<Key, WeightGradients> of_weights_;           // deferred by I, computed by W
  std::map<Transfer, Leaves> unsent_outputs_;           // outputs not sent yet
  std::map<Transfer, TensorVersions> output_versions_;  // of outputs that another rank may not have received yet
  std::map<Transfer, Arrived> arrived_;                 // received, or computed on this rank, and not used yet
  std::deque<Transfer> to_receive_;                     // messages to receive, in the order of the program
};

}  // namespace d9d
