#include "d9d/parallelism/fsdp/fsdp_runtime.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/dtype/scalar_type.h"

namespace d9d {

FsdpUnit& FsdpRuntime::add_unit(std::string name, std::vector<std::unique_ptr<FlatGroup>> groups, bool stays_gathered) {
  D9D_CHECK(!gathers_.is_materialized(), StateError, "[parallelism::fsdp] expected unit '", name,
            "' before materialize(), got it afterwards.");
  for (const auto& group : groups) group->set_gradient_dtype(gradient_dtype_of(group->dtype(), config_.gradient_dtype));
  units_.push_back(
      std::make_unique<FsdpUnit>(*this, units_.size(), std::move(name), std::move(groups), stays_gathered));
  in_backward_.push_back(false);
  return *units_.back();
}

void FsdpRuntime::materialize(at::Device device) {
  if (gathers_.is_materialized()) return;
  exchanges_.connect(units_, config_);
  const bool reshards = config_.reshard_after_forward != ReshardAfterForward::kNever;
  for (const ShardExchange& exchange : exchanges_.all()) {
    if (!log_) break;
    log_->info("sharded parameters of group '", exchange.ranks->group().name, "' are gathered ",
               reshards ? "" : "once a step ", exchange.gather->description());
  }
  for (const auto& unit : units_) {
    for (const auto& group : unit->groups()) {
      const ShardExchange& exchange = exchanges_.of(*group);
      group->materialize(exchange.gather, exchange.reduce);
    }
    unit->materialized();
  }
  gathers_.materialize(device, reshards);
  flow_.materialize(device);
}

void FsdpRuntime::check_ready(const FsdpUnit& unit) const {
  D9D_CHECK(gathers_.is_materialized(), StateError,
            "[parallelism::fsdp] expected materialize() before the forward of '", unit.name(), "'.");
  D9D_CHECK(!is_offloaded_, StateError, "[parallelism::fsdp] expected onload() before the forward of '", unit.name(),
            "'.");
}

UnitOrder::Call FsdpRuntime::enter(FsdpUnit& unit) {
  check_ready(unit);
  const std::size_t index = unit.index();
  if (order_.begins_forward()) {
    while (!order_.is_at_start()) step_back();  // the calls that the previous backward left out
  }
  const auto expected = order_.next_in_forward();
  const auto call = order_.enter(index);
  D9D_CHECK(call.has_value(), StateError, "[parallelism::fsdp] expected units in the order of the first microbatch, ",
            expected ? cat("next '", units_[*expected]->name(), "'") : "none", ", got '", unit.name(),
            "'. A forward without backward needs NoGradGuard; a model whose order of layers changes cannot be "
            "gathered ahead.");
  flow_.use(index);
  print_.add(index, OrderPrint::What::kEntered);
  if (gathers_.begin_reading()) flow_.open_slots(log_);
  gathers_.gather(index);
  if (const auto ahead = order_.next_in_forward()) gathers_.gather(*ahead);
  gathers_.wait(index);
  return *call;
}

void FsdpRuntime::gather_for_forward(FsdpUnit& unit) {
  check_ready(unit);
  gathers_.gather(unit.index());
  if (evaluation_.is_running) gather_ahead_in_evaluation(unit.index());
  gathers_.wait(unit.index());
}

void FsdpRuntime::gather_ahead_in_evaluation(std::size_t index) {
  auto& [is_running, next, last, ahead] = evaluation_;
  if (ahead && *ahead != index) gathers_.release(*ahead);  // the model takes another way than last time
  ahead.reset();
  if (last) next[*last] = index;
  last = index;
  const auto expected = next.find(index);
  if (expected == next.end() || units_[expected->second]->is_gathered()) return;
  gathers_.gather(expected->second);
  ahead = expected->second;
}

void FsdpRuntime::begin_evaluation() {
  if (!gathers_.is_materialized() || is_offloaded_) return;  // the first forward says so
  evaluation_.is_running = true;
  gathers_.begin_reading();
}

void FsdpRuntime::end_evaluation() {
  if (!std::exchange(evaluation_.is_running, false)) return;
  evaluation_.last.reset();
  evaluation_.ahead.reset();
  for (std::size_t index = 0; index < units_.size(); ++index) gathers_.release(index);
  gathers_.end_reading();
  print_.clear();
}

void FsdpRuntime::leave(const UnitOrder::Call& call, bool has_backward) {
  if (has_backward) {
    order_.leave(call);
  } else {
    order_.forget(call);
  }
  const auto next = order_.next_in_forward();
  if (!gathers_.is_in_arena(call.unit) || next == call.unit) return;
  const bool is_last = order_.is_recorded() ? !next : call.unit + 1 == units_.size();
  if (is_last && config_.reshard_after_forward == ReshardAfterForward::kExceptLast) return;
  gathers_.release(call.unit);
}

void FsdpRuntime::release_after_forward(FsdpUnit& unit) {
  const std::size_t index = unit.index();
  if (in_backward_[index]) return;
  if (evaluation_.is_running && !gathers_.is_in_arena(index)) return;
  if (!at::GradMode::is_enabled() || gathers_.is_in_arena(index)) gathers_.release(index);
}

void FsdpRuntime::begin_backward(const UnitOrder::Call& call) {
  order_.reverse();
  while (order_.is_ahead(call, UnitOrder::Side::kEnd)) step_back();
  gathers_.gather(call.unit);  // has an effect only if an earlier backward has passed the call
  in_backward_[call.unit] = true;
  gathers_.wait(call.unit);
}

// If an earlier backward has passed the call, this does nothing: other ranks need not reach the call at this point, so
// end_pass() releases and reduces the unit.
void FsdpRuntime::end_backward(const UnitOrder::Call& call) {
  while (order_.is_ahead(call, UnitOrder::Side::kStart)) step_back();
}

void FsdpRuntime::step_back() {
  const auto [index, side] = order_.step_back();
  if (side == UnitOrder::Side::kStart) return finish_backward(index);
  in_backward_[index] = true;
  flow_.take_slot(index);
  gathers_.gather(index);
  if (const auto ahead = order_.next_in_backward()) gathers_.gather(*ahead);
}

void FsdpRuntime::finish_backward(std::size_t index) {
  if (order_.goes_on_with(index)) return;
  in_backward_[index] = false;
  const bool stays = units_[index]->stays_gathered();
  if (stays && order_.comes_again_to(index)) return;
  if (gathers_.is_in_arena(index) || stays) gathers_.release(index);
  flow_.finish(index);
}

void FsdpRuntime::set_gradient_dtype(std::optional<Dtype> dtype) {
  if (!config_.gradient_dtype) flow_.set_gradient_dtype(dtype);
}

void FsdpRuntime::begin_pass(const StagePass& pass) {
  flow_.begin(pass);
  if (pass.kind != StagePassKind::kBackward) return order_.begin_microbatch();
  if (pass.part != BackwardPart::kWeight) order_.resume(pass.microbatch);
}

void FsdpRuntime::end_pass() {
  const StagePass& pass = flow_.pass();
  if (pass.kind == StagePassKind::kForward) return order_.pause(pass.microbatch);
  pass.part == BackwardPart::kWeight ? flow_.reduce_waiting(/*all=*/true) : end_calls();
  flow_.reduce_rest();
}

void FsdpRuntime::end_calls() {
  while (!order_.is_at_start()) step_back();  // the calls that backward left out
  order_.end_microbatch();
  for (std::size_t index = 0; index < units_.size(); ++index) {
    if (gathers_.is_in_arena(index) || units_[index]->stays_gathered()) gathers_.release(index);
  }
}

void FsdpRuntime::finish() {
  gathers_.end_reading();
  flow_.wait();
  for (std::size_t index = 0; index < units_.size(); ++index) {
    gathers_.release(index);
    units_[index]->publish_gradients();
  }
}

void FsdpRuntime::clear() {
  flow_.wait();  // the step may not have been finished
  flow_.clear();
  print_.clear();
}

void FsdpRuntime::offload(const OffloadContext& context) {
  D9D_CHECK(gathers_.is_materialized() && !is_offloaded_, StateError,
            "[parallelism::fsdp] expected parameters on their device, got ",
            is_offloaded_ ? "some that are offloaded already" : "none: call materialize() first", ".");
  std::vector<at::Tensor> slices;
  for (const auto& unit : units_) {
    gathers_.release(unit->index());
    for (const auto& group : unit->groups()) {
      group->clear_gradients();
      for (const at::Tensor& slice : group->slices()) slices.push_back(slice);
    }
  }
  flow_.free_slots();
  gathers_.free();
  close();
  offloaded_ = offload_tensors(slices, context.options);
  is_offloaded_ = true;
}

void FsdpRuntime::onload(const OnloadContext& /*context*/) {
  D9D_CHECK(is_offloaded_, StateError, "[parallelism::fsdp] expected offloaded parameters, got some on their device.");
  onload_tensors(offloaded_);
  is_offloaded_ = false;
}

void FsdpRuntime::abandon() {
  evaluation_ = {};
  flow_.wait();
  gathers_.abandon();
  for (const auto& unit : units_) unit->abandon();
  in_backward_.assign(units_.size(), false);
  clear();
  order_.abandon();
  flow_.abandon();
}

void FsdpRuntime::close() {
  gathers_.close();
  flow_.close();
}

}  // namespace d9d
