// The gradients of a stage's units until they are summed over ranks: where full gradients are stored, and when each
// unit is reduced.
//
// Example
//   GradientFlow flow(units, exchanges, print, /*reduces_on_last=*/false);
//   flow.materialize(device);
//   flow.begin(pass);
//   flow.use(unit);                                // a forward uses its parameters
//   flow.take_slot(unit);                          // its backward begins
//   flow.finish(unit);                             // its backward has ended: reduces the unit, if this pass reduces
//   flow.reduce_rest();                            // at the end of the pass
//   flow.wait();
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/log.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/parallelism/fsdp/gradient_slots.h"
#include "d9d/parallelism/fsdp/order_print.h"
#include "d9d/parallelism/fsdp/shard_exchanges.h"

namespace d9d {

// Units are identified by their index.
class GradientFlow {
 public:
  // units, exchanges and print are borrowed. print: each reduction is added to it. reduces_on_last:
  // FsdpConfig::reduce_on_last_microbatch.
  GradientFlow(const FsdpUnits& units, const ShardExchanges& exchanges, OrderPrint& print, bool reduces_on_last)
      : units_(units), exchanges_(exchanges), print_(print), reduces_on_last_(reduces_on_last) {}

  void materialize(at::Device device);
  // Throws StateError if memory for gradients of another dtype is allocated.
  void set_gradient_dtype(std::optional<Dtype> dtype);
  // Collective at its first call and after close(): allocates the slots. log: gets one line per exchange.
  void open_slots(const std::optional<Logger>& log);

  void begin(const StagePass& pass);
  [[nodiscard]] const StagePass& pass() const { return pass_; }  // the current or last pass
  void use(std::size_t unit) { uses_[unit] = {.in_step = true, .owes_reduction = true}; }
  // Called when the backward of a unit begins and not when a gradient is computed, so that all ranks take slots for the
  // same units. The memory of a gradient decides how it is reduced (ShardReduce), which must be the same on all ranks.
  void take_slot(std::size_t unit);
  void provide_memory(FsdpUnit& unit);  // for its full gradient
  // The following functions are collective. finish() is called when the backward of the unit has ended; it reduces the
  // unit if this pass reduces.
  void finish(std::size_t unit);
  // Called when a gradient of a unit is complete; has an effect only in W of a split backward. Reduces units from the
  // last unit of forward to the first, and stops at a unit whose gradients are not complete, unless `all`. So all ranks
  // reduce in the same order, whichever gradient is complete first.
  void reduce_waiting(bool all);
  // If this pass reduces, reduces all units that must still be reduced. In the last pass of a step it also sums
  // gradients over replicas and compares the orders of the ranks.
  void reduce_rest();

  void wait() const { reduced_.wait(); }  // makes the current stream wait for the last reduction
  void clear();
  void abandon() { slots_.abandon(); }
  void free_slots() { slots_.clear(); }
  void close();  // collective
  // Returns GradientReduction::disagreement() of the last step.
  [[nodiscard]] const at::Tensor& disagreement() const { return disagreement_; }
  [[nodiscard]] std::int64_t num_reductions() const { return num_reductions_; }

 private:
  struct Use {
    bool in_step = false;         // whether a forward with a backward used the unit in this step
    bool owes_reduction = false;  // whether the unit must still be reduced
  };
  [[nodiscard]] std::int64_t slot_bytes(const ShardExchange& exchange) const;
  [[nodiscard]] bool reduces_now() const {
    return pass_.part != BackwardPart::kInput && (pass_.is_last || !reduces_on_last_);
  }
  void reduce(std::size_t unit);
  void compare_ranks();

  const FsdpUnits& units_;
  const ShardExchanges& exchanges_;
  OrderPrint& print_;
  const bool reduces_on_last_;
  at::Device device_ = at::kCPU;
  std::vector<Use> uses_;  // by unit
  std::optional<SideStream> stream_;
  OrderPrint last_;  // fingerprint of the last microbatch's reductions, which replicas share
  StagePass pass_ = {.is_last = true};
  bool has_logged_ = false;
  std::size_t num_waiting_ = 0;  // W has yet to reduce the units before this index
  GradientSlots slots_;          // a unit has a slot from the beginning of its backward to its reduction
  StreamEvent reduced_;          // the end of the last reduction
  at::Tensor disagreement_;
  std::int64_t num_reductions_ = 0;
};

}  // namespace d9d
