// What the sharded units of one model stage share: memory, streams, the order in which they are gathered.
//
// Example
//   auto fsdp = std::make_shared<FsdpRuntime>(FsdpConfig{});
//   const std::vector<FsdpAxes> axes = {{.mesh = dense, .shard_axis = "dp_cp_shard"}};
//   parallelize_fsdp(fsdp, {embedding}, axes);
//   for (const auto& layer : layers) parallelize_fsdp(fsdp, {layer}, axes);
//   parallelize_fsdp(fsdp, {norm, head}, axes);
//   model->materialize(device);                       // Collective: slices only
//   model->reset_parameters(seed);                    // the numbers of one rank
//
// In one step, from its first forward with gradients to finish(), parameters must not be written: where the slices come
// together by copies (fsdp_config.h) a rank reads those of others while these compute. Between steps they may be
// written in any way, and a forward without gradients then sees them.
//
// Units are declared in the order in which forward uses them. The order of forward is recorded in the first microbatch;
// from then on the next unit is gathered while one computes, and a forward in another order is a StateError. All ranks
// run the same units in forward; disagreement() tells where they do not. Losses may use others on each rank: what a
// backward leaves out is gathered and reduced, as zeros, where the other ranks do so (unit_order.h). Not so where a
// checkpoint encloses sharded units: what it computes again is gathered when it does, which with all_gather the ranks
// must do alike. Several backwards of one forward come to the same units on all ranks. A forward without gradients
// gathers as it goes and is not part of the order.
//
// One runtime a model: two would have an order each on the same communicators.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/offload/offload.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"
#include "d9d/parallelism/fsdp/fsdp_unit.h"
#include "d9d/parallelism/fsdp/gather_arena.h"
#include "d9d/parallelism/fsdp/gradient_slots.h"
#include "d9d/parallelism/fsdp/order_print.h"
#include "d9d/parallelism/fsdp/shard_gather.h"
#include "d9d/parallelism/fsdp/unit_order.h"

namespace d9d {

// Graphs of the modules' forward hold it until their backward.
class FsdpRuntime final : public GradientReduction,
                          public Offloadable,
                          public std::enable_shared_from_this<FsdpRuntime> {
 public:
  // log: where it says, once, how slices come together; none: nowhere.
  explicit FsdpRuntime(FsdpConfig config, std::optional<Logger> log = std::nullopt)
      : config_(config), log_(std::move(log)) {}

  // Throws StateError where memory of gradients of another dtype is there.
  void set_gradient_dtype(std::optional<Dtype> dtype) override;
  void begin_microbatch(bool is_last) override;
  void end_microbatch() override;
  void finish() override;
  void clear() override;
  void abandon() override;
  [[nodiscard]] at::Tensor disagreement() const override { return disagreement_; }

  // Slices go to the host; memory of gathers and gradients is given back. Collective where slices are copied from
  // peers. Offloading forgets gradients.
  void offload(const OffloadContext& context) override;
  void onload(const OnloadContext& context) override;
  [[nodiscard]] bool is_offloaded() const override { return is_offloaded_; }
  void close() override;

  [[nodiscard]] const FsdpConfig& config() const { return config_; }
  // All-gathers and reductions of units since construction.
  [[nodiscard]] std::int64_t num_gathers() const { return num_gathers_; }
  [[nodiscard]] std::int64_t num_reductions() const { return num_reductions_; }

  // For parallelize_fsdp and for units.
  FsdpUnit& add_unit(std::string name, std::vector<std::unique_ptr<FlatGroup>> groups, bool stays_gathered);
  void materialize(at::Device device);  // Collective; once, whoever asks
  // Collective unless gathered: local() of the unit's parameters can be used when it returns, until the forward ended.
  [[nodiscard]] UnitOrder::Call enter(FsdpUnit& unit);  // of a forward with a backward: gathers the next unit ahead
  void gather_for_forward(FsdpUnit& unit);              // of one without, and of a recomputation
  void leave(const UnitOrder::Call& call, bool has_backward);  // whether backward comes to its outputs
  void release_after_forward(FsdpUnit& unit);                  // of one without, and of a recomputation
  // Collective. Of a call's module: before its backward, when its parameters can be used, and when their gradients have
  // come.
  void begin_backward(const UnitOrder::Call& call);
  void end_backward(const UnitOrder::Call& call);
  void provide_gradients(FsdpUnit& unit);  // memory for the unit's full gradient

 private:
  struct Entry {
    std::unique_ptr<FsdpUnit> unit;
    std::optional<std::size_t> arena_index;  // none: stays gathered in memory of its own
    at::Tensor own_memory;
    StreamEvent ready;  // of the last gather
    bool in_backward = false;
    bool owes_reduction = false;  // was in a forward with a backward since the last one
  };
  // What crosses between the ranks over which some groups are cut.
  struct Exchange {
    std::shared_ptr<Communicator> ranks;
    std::int64_t slice_bytes = 0;  // of parameters, of all groups
    std::shared_ptr<ShardGather> gather;
    std::shared_ptr<ShardReduce> reduce;
  };
  void make_exchanges();
  [[nodiscard]] Exchange& exchange_of(const FlatGroup& group);
  [[nodiscard]] std::int64_t slot_bytes(const Exchange& exchange) const;
  void open_gradient_slots();
  void close_exchanges();
  void begin_reading();
  void end_reading();
  void check_ready(const FsdpUnit& unit) const;
  void gather(std::size_t index);  // unless it is
  void release(std::size_t index);
  void step_back();
  void finish_backward(std::size_t index);
  [[nodiscard]] bool reduces_now() const { return is_last_microbatch_ || !config_.reduce_on_last_microbatch; }
  void reduce(std::size_t index);
  void compare_ranks();

  FsdpConfig config_;
  std::optional<Logger> log_;
  std::vector<Entry> entries_;
  std::vector<Exchange> exchanges_;                      // by ranks, in the order of their first groups
  std::vector<std::shared_ptr<Communicator>> replicas_;  // over which some groups are copied, in the same order
  std::optional<GatherArena> arena_;                     // from materialize on
  std::optional<SideStream> gather_stream_;
  std::optional<SideStream> reduce_stream_;
  at::Device device_ = at::kCPU;

  UnitOrder order_;
  OrderPrint step_;          // of what crosses the ranks of the exchanges
  OrderPrint last_;          // of what crosses replicas, in the last microbatch alone
  at::Tensor disagreement_;  // of the step
  bool is_last_microbatch_ = true;
  bool is_reading_ = false;  // ranks may read each other's slices

  GradientSlots gradient_slots_;  // taken from the begin of a unit's backward to its reduction
  StreamEvent reduced_;           // the last reduction
  bool is_offloaded_ = false;
  OffloadedTensors offloaded_;
  std::int64_t num_gathers_ = 0;
  std::int64_t num_reductions_ = 0;
};

}  // namespace d9d
