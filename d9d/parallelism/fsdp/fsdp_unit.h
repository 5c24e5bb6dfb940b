// Modules whose parameters are gathered together, and their handling in forward and backward.
//
// A forward consists of: gather; input boundary (its backward reshards and reduces); the body, checkpointed or not;
// output boundary (its backward gathers); reshard. The boundaries enclose the checkpoint, so that its recomputation
// finds the unit gathered.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/modules/module.h"
#include "d9d/parallelism/fsdp/flat_group.h"
#include "d9d/parallelism/fsdp/unit_order.h"

namespace d9d {

class FsdpRuntime;

// A part of FsdpRuntime, which provides memory and decides when units are gathered ahead.
class FsdpUnit {
 public:
  // index: the unit's index among the units of the runtime.
  FsdpUnit(FsdpRuntime& runtime, std::size_t index, std::string name, std::vector<std::unique_ptr<FlatGroup>> groups,
           bool stays_gathered);
  FsdpUnit(const FsdpUnit&) = delete;
  FsdpUnit& operator=(const FsdpUnit&) = delete;

  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::int64_t gathered_bytes() const;
  [[nodiscard]] std::int64_t gradient_bytes() const;
  [[nodiscard]] bool stays_gathered() const { return stays_gathered_; }
  [[nodiscard]] bool is_gathered() const;

  [[nodiscard]] const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return groups_; }
  // Called when the groups have storage. Registers hooks for the gradients of their parameters.
  void materialized();
  void before_forward(const TensorRefs& inputs);
  void after_forward(const TensorRefs& outputs);

  // Returns whether a gather is currently a collective. Otherwise this rank copies the slices without the other ranks.
  [[nodiscard]] bool gathers_by_collective() const;
  // The following functions are for the runtime. gather(), reduce_gradients() and sum_over_replicas() are collective.
  void update_gathered_slices();
  void gather(const at::Tensor& memory);
  void release();
  void begin_gradients(const std::function<at::Tensor(const FlatGroup& group)>& memory_for);
  void reduce_gradients(bool over_replicas);
  void sum_over_replicas();
  void publish_gradients();
  void clear_gradients();
  [[nodiscard]] bool has_gradients() const;
  // Returns whether the gradients of all trained parameters have arrived since begin_arrivals().
  [[nodiscard]] bool has_all_gradients() const { return num_arrived_ == hooks_.size(); }
  void begin_arrivals() { num_arrived_ = 0; }
  void abandon() { open_calls_.clear(); }  // drops forwards that an exception ended

 private:
  // A call of a module of the unit; its forward has not ended.
  struct OpenCall {
    UnitOrder::Call call;
    bool inputs_have_backward;
  };
  FlatGroup& gradient_group(FlatGroup& group);  // allocates its gradients if needed

  FsdpRuntime& runtime_;
  std::size_t index_;
  std::string name_;
  std::vector<std::unique_ptr<FlatGroup>> groups_;
  bool stays_gathered_;
  std::size_t num_arrived_ = 0;            // trained parameters whose gradients have arrived
  std::vector<OpenCall> open_calls_;       // the outermost first
  std::vector<GradientHookHandle> hooks_;  // of the parameters; last, because they use the members above
};
using FsdpUnits = std::vector<std::unique_ptr<FsdpUnit>>;

}  // namespace d9d
