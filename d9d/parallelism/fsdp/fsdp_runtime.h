// Runs the sharded units of one model stage. It has three parts: the order in which units are used (unit_order.h), the
// units that are gathered (unit_gathers.h), and the reduction of gradients (gradient_flow.h).
//
// Example
//   auto fsdp = std::make_shared<FsdpRuntime>(FsdpConfig{});
//   const std::vector<FsdpAxes> axes = {{.mesh = dense, .shard_axis = "dp_cp_shard"}};
//   parallelize_fsdp(fsdp, {.name = "embedding", .modules = {embedding}, .axes = axes});
//   for (const auto& layer : layers) parallelize_fsdp(fsdp, {.name = "layer", .modules = {layer}, .axes = axes});
//   parallelize_fsdp(fsdp, {.name = "head", .modules = {norm, head}, .axes = axes});
//   model->materialize(device);                       // Collective. Allocates slices only
//   model->reset_parameters(seed);                    // the same values as on one rank
//
// In a step, from its first forward with gradients to finish(), parameters must not be written: if slices are gathered
// by copies (fsdp_config.h), a rank reads the slices of other ranks while those ranks compute. Between steps parameters
// may be written in any way; a forward without gradients then uses the new values.
//
// Units are declared in the order in which forward uses them. The order of forward is recorded in the first microbatch.
// From then on the next unit is gathered while one computes, and a forward in another order throws StateError. All
// ranks must run the same units in forward; disagreement() reports if they do not. Their losses may use different
// units: units that the backward of a rank leaves out are gathered and reduced, with zeros, when the other ranks do so
// (unit_order.h). This does not hold if a checkpoint encloses sharded units: its recomputation gathers these units when
// it runs, so if the gather is an all_gather, all ranks must run the same recomputations. Several backwards of one
// forward must reach the same units on all ranks. A forward without gradients gathers each unit when it needs it; its
// units are not part of the order. Between begin_evaluation() and end_evaluation() it also gathers the unit that
// followed last time, and units that do not share the arena stay gathered.
//
// A model must have a single runtime: two would issue collectives in independent orders on the same communicators. Each
// pipeline stage of a rank has a runtime of its own, since the passes of stages run one after another in the order of
// the program. Between a microbatch's forward and its backward a stage runs other microbatches: with kNever and
// reduce_on_last_microbatch, the default of pipelines (resolve_fsdp()), it gathers and reduces once a step, otherwise
// in each pass. In a split backward I gathers parameters and W reduces gradients, since W needs no parameters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/core/offload/offload.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"
#include "d9d/parallelism/fsdp/fsdp_unit.h"
#include "d9d/parallelism/fsdp/gradient_flow.h"
#include "d9d/parallelism/fsdp/order_print.h"
#include "d9d/parallelism/fsdp/shard_exchanges.h"
#include "d9d/parallelism/fsdp/unit_gathers.h"
#include "d9d/parallelism/fsdp/unit_order.h"

namespace d9d {

// The autograd graphs of the modules' forwards hold a reference to the runtime until their backward.
class FsdpRuntime final : public GradientReduction,
                          public Offloadable,
                          public std::enable_shared_from_this<FsdpRuntime> {
 public:
  // config: unset options get the defaults of a model without a pipeline; for a pipeline, call resolve_fsdp() first.
  // log: gets one line per group of ranks about the way in which slices are gathered and gradients summed. Unset: no
  // log.
  explicit FsdpRuntime(FsdpConfig config, std::optional<Logger> log = std::nullopt)
      : config_(resolve_fsdp(config, /*num_pipeline_ranks=*/1)), log_(std::move(log)) {}

  // Has no effect if FsdpConfig::gradient_dtype is set. Throws StateError if memory for gradients of another dtype is
  // allocated.
  void set_gradient_dtype(std::optional<Dtype> dtype) override;
  void begin_pass(const StagePass& pass) override;
  void end_pass() override;
  void finish() override;
  void clear() override;
  void abandon() override;
  void begin_evaluation() override;
  void end_evaluation() override;
  [[nodiscard]] at::Tensor disagreement() const override { return flow_.disagreement(); }

  // Moves slices to the host and frees the memory of gathers and gradients, which discards gradients. Collective if
  // slices are copied from peers.
  void offload(const OffloadContext& context) override;
  void onload(const OnloadContext& context) override;
  [[nodiscard]] bool is_offloaded() const override { return is_offloaded_; }
  void close() override;

  [[nodiscard]] const FsdpConfig& config() const { return config_; }
  // Return the number of gathers and of reductions of units since construction.
  [[nodiscard]] std::int64_t num_gathers() const { return gathers_.num_gathers(); }
  [[nodiscard]] std::int64_t num_reductions() const { return flow_.num_reductions(); }

  // The following functions are for parallelize_fsdp and for units.
  FsdpUnit& add_unit(std::string name, std::vector<std::unique_ptr<FlatGroup>> groups, bool stays_gathered);
  void materialize(at::Device device);  // Collective. Does its work at the first call only
  // Collective unless the unit is gathered. Called before the forward of a unit's module: local() of the unit's
  // parameters can be used from the return to the end of the forward. enter() is for forwards that have a backward, and
  // also gathers the next unit; gather_for_forward() is for forwards without a backward and for recomputations.
  [[nodiscard]] UnitOrder::Call enter(FsdpUnit& unit);
  void gather_for_forward(FsdpUnit& unit);
  // leave() is called after a forward that has a backward, release_after_forward() after any other forward.
  // has_backward: whether an output of the call requires gradients.
  void leave(const UnitOrder::Call& call, bool has_backward);
  void release_after_forward(FsdpUnit& unit);
  // Collective. begin_backward() is called before the backward of a call: its parameters can be used when it returns.
  // end_backward() is called when the gradients of its parameters are complete.
  void begin_backward(const UnitOrder::Call& call);
  void end_backward(const UnitOrder::Call& call);
  void provide_gradients(FsdpUnit& unit) { flow_.provide_memory(unit); }
  // Collective. Called when the gradient of a unit's parameter is complete.
  void gradient_arrived() { flow_.reduce_waiting(/*all=*/false); }

 private:
  void check_ready(const FsdpUnit& unit) const;
  void step_back();
  void finish_backward(std::size_t index);
  void end_calls();  // passes the calls that backward has left out
  void gather_ahead_in_evaluation(std::size_t unit);

  FsdpConfig config_;
  std::optional<Logger> log_;
  FsdpUnits units_;
  std::vector<bool> in_backward_;  // by unit: whether its backward runs
  ShardExchanges exchanges_;
  UnitOrder order_;
  OrderPrint print_;  // fingerprint of this step's collectives
  UnitGathers gathers_{units_, exchanges_, print_};
  GradientFlow flow_{units_, exchanges_, print_, *config_.reduce_on_last_microbatch};
  // The walk through an evaluation.
  struct Evaluation {
    bool is_running = false;
    std::map<std::size_t, std::size_t> next = {};  // the unit that followed each unit last time
    std::optional<std::size_t> last = {};
    std::optional<std::size_t> ahead = {};  // is gathered because it should come next
  };
  Evaluation evaluation_;
  bool is_offloaded_ = false;
  OffloadedTensors offloaded_;
};

}  // namespace d9d
