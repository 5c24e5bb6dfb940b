#include "d9d/parallelism/fsdp/fsdp_runtime.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/parallelism/fsdp/flat_alignment.h"

namespace d9d {

FsdpUnit& FsdpRuntime::add_unit(std::string name, std::vector<std::unique_ptr<FlatGroup>> groups, bool stays_gathered) {
  D9D_CHECK(!arena_, StateError, "[parallelism::fsdp] expected unit '", name,
            "' before materialize(), got it afterwards.");
  for (const auto& group : groups) group->set_gradient_dtype(gradient_dtype_of(group->dtype(), config_.gradient_dtype));
  const std::size_t index = entries_.size();
  entries_.push_back(
      {.unit = std::make_unique<FsdpUnit>(*this, index, std::move(name), std::move(groups), stays_gathered)});
  return *entries_.back().unit;
}

void FsdpRuntime::materialize(at::Device device) {
  if (arena_) return;
  device_ = device;
  gather_stream_.emplace(device);
  reduce_stream_.emplace(device);
  make_exchanges();
  std::vector<std::int64_t> unit_bytes;
  for (Entry& entry : entries_) {
    for (const auto& group : entry.unit->groups()) {
      const Exchange& exchange = exchange_of(*group);
      group->materialize(exchange.gather, exchange.reduce);
    }
    entry.unit->materialized();
    if (entry.unit->stays_gathered() || config_.reshard_after_forward == ReshardAfterForward::kNever) continue;
    entry.arena_index = unit_bytes.size();
    unit_bytes.push_back(entry.unit->gathered_bytes());
  }
  arena_.emplace(std::move(unit_bytes), device);
}

void FsdpRuntime::make_exchanges() {
  for (const Entry& entry : entries_) {
    for (const auto& group : entry.unit->groups()) {
      group->connect();
      exchange_of(*group).slice_bytes += round_up(group->slice_bytes(), kFlatAlignmentBytes);
      const auto& replicas = group->replica_ranks();
      if (replicas != nullptr && std::ranges::find(replicas_, replicas) == replicas_.end())
        replicas_.push_back(replicas);
    }
  }
  for (Exchange& exchange : exchanges_) {
    exchange.gather = make_shard_gather(config_.gather, exchange.ranks, exchange.slice_bytes);
    exchange.reduce = std::make_shared<ShardReduce>(config_.reduce, exchange.ranks);
    if (log_) {
      const bool is_once = config_.reshard_after_forward == ReshardAfterForward::kNever;
      log_->info("sharded parameters of group '", exchange.ranks->group().name, "' are gathered ",
                 is_once ? "once a step " : "", exchange.gather->description());
    }
  }
  // On a GPU there are two slots, because the next unit fills one while the reduction of the other overlaps backward.
  if (!*config_.reduce_on_last_microbatch) gradient_slots_ = GradientSlots(device_.is_cpu() ? 1 : 2);
}

FsdpRuntime::Exchange& FsdpRuntime::exchange_of(const FlatGroup& group) {
  const auto found =
      std::ranges::find_if(exchanges_, [&](const Exchange& each) { return each.ranks == group.shard_ranks(); });
  if (found != exchanges_.end()) return *found;
  return exchanges_.emplace_back(Exchange{.ranks = group.shard_ranks()});
}

// Announces that this rank will read the slices of other ranks in this step. All ranks call begin() of the exchanges in
// the same order.
void FsdpRuntime::begin_reading() {
  if (std::exchange(is_reading_, true)) return;
  (void)gather_stream_->run([&] {
    for (const Entry& entry : entries_) entry.unit->update_gathered_slices();
    for (const Exchange& each : exchanges_) each.gather->begin();
  });
  open_gradient_slots();
}

void FsdpRuntime::end_reading() {
  if (!std::exchange(is_reading_, false)) return;
  const StreamEvent ended = gather_stream_->run([&] {
    for (const Exchange& each : exchanges_) each.gather->end();
  });
  ended.wait();
}

void FsdpRuntime::check_ready(const FsdpUnit& unit) const {
  D9D_CHECK(arena_.has_value(), StateError, "[parallelism::fsdp] expected materialize() before the forward of '",
            unit.name(), "'.");
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
            expected ? cat("next '", entries_[*expected].unit->name(), "'") : "none", ", got '", unit.name(),
            "'. A forward without backward needs NoGradGuard; a model whose order of layers changes cannot be "
            "gathered ahead.");
  entries_[index].is_used = entries_[index].owes_reduction = true;
  step_.add(index, OrderPrint::What::kEntered);
  begin_reading();
  gather(index);
  if (const auto ahead = order_.next_in_forward()) gather(*ahead);
  entries_[index].ready.wait();
  return *call;
}

void FsdpRuntime::gather_for_forward(FsdpUnit& unit) {
  check_ready(unit);
  const std::size_t index = unit.index();
  gather(index);
  entries_[index].ready.wait();
}

void FsdpRuntime::gather(std::size_t index) {
  Entry& entry = entries_[index];
  if (entry.unit->is_gathered()) return;
  at::Tensor memory = entry.own_memory;
  if (entry.arena_index) {
    memory = arena_->acquire(*entry.arena_index);
  } else if (!memory.defined()) {
    const at::TensorOptions options = at::TensorOptions(device_).dtype(at::kByte);
    memory = entry.own_memory = at::empty({entry.unit->gathered_bytes()}, options);
  }
  if (entry.unit->gathers_by_collective()) step_.add(index, OrderPrint::What::kGathered);
  entry.ready = gather_stream_->run([&] {
    if (!is_reading_) entry.unit->update_gathered_slices();
    entry.unit->gather(memory);
  });
  ++num_gathers_;
}

void FsdpRuntime::release(std::size_t index) {
  Entry& entry = entries_[index];
  if (!entry.unit->is_gathered()) return;
  entry.unit->release();
  if (entry.arena_index) arena_->release(*entry.arena_index);
}

void FsdpRuntime::leave(const UnitOrder::Call& call, bool has_backward) {
  if (has_backward) {
    order_.leave(call);
  } else {
    order_.forget(call);
  }
  const auto next = order_.next_in_forward();
  if (!entries_[call.unit].arena_index || next == call.unit) return;
  const bool is_last = order_.is_recorded() ? !next : call.unit + 1 == entries_.size();
  if (is_last && config_.reshard_after_forward == ReshardAfterForward::kExceptLast) return;
  release(call.unit);
}

void FsdpRuntime::release_after_forward(FsdpUnit& unit) {
  const std::size_t index = unit.index();
  const Entry& entry = entries_[index];
  if (entry.in_backward) return;
  if (!at::GradMode::is_enabled() || entry.arena_index) release(index);
}

void FsdpRuntime::begin_backward(const UnitOrder::Call& call) {
  order_.reverse();
  while (order_.is_ahead(call, UnitOrder::Side::kEnd)) step_back();
  gather(call.unit);  // has an effect only if an earlier backward has passed the call
  entries_[call.unit].in_backward = true;
  entries_[call.unit].ready.wait();
}

// If an earlier backward has passed the call, this does nothing: other ranks need not reach the call at this point, so
// end_pass() releases and reduces the unit.
void FsdpRuntime::end_backward(const UnitOrder::Call& call) {
  while (order_.is_ahead(call, UnitOrder::Side::kStart)) step_back();
}

void FsdpRuntime::step_back() {
  const auto [index, side] = order_.step_back();
  if (side == UnitOrder::Side::kStart) return finish_backward(index);
  entries_[index].in_backward = true;
  // A slot is taken here and not when a gradient is computed, so that all ranks take slots for the same units. The
  // memory of a gradient decides how it is reduced (ShardReduce), which must be the same on all ranks.
  if (entries_[index].unit->gradient_bytes() > 0 && pass_.part != BackwardPart::kInput) gradient_slots_.take(index);
  gather(index);
  if (const auto ahead = order_.next_in_backward()) gather(*ahead);
}

void FsdpRuntime::finish_backward(std::size_t index) {
  if (order_.goes_on_with(index)) return;
  Entry& entry = entries_[index];
  entry.in_backward = false;
  const bool stays = entry.unit->stays_gathered();
  if (stays && order_.comes_again_to(index)) return;
  if (entry.arena_index || stays) release(index);
  if (reduces_now()) reduce(index);
}

void FsdpRuntime::set_gradient_dtype(std::optional<Dtype> dtype) {
  if (config_.gradient_dtype) return;
  for (const Entry& entry : entries_) {
    for (const auto& group : entry.unit->groups()) {
      const c10::ScalarType wanted = gradient_dtype_of(group->dtype(), dtype);
      const bool is_open = group->has_gradients() ||
                           (group->shard_ranks() != nullptr && gradient_slots_.has_memory(*group->shard_ranks()));
      D9D_CHECK(wanted == group->gradient_dtype() || !is_open, StateError,
                "[parallelism::fsdp] expected gradients of '", entry.unit->name(), "' in ", group->gradient_dtype(),
                " as in the steps before, got ", wanted, ". Call close() first.");
      group->set_gradient_dtype(wanted);
    }
  }
}

// The gradient bytes, over the ranks of an exchange, of the unit that has the most.
std::int64_t FsdpRuntime::slot_bytes(const Exchange& exchange) const {
  std::int64_t most = 0;
  for (const Entry& entry : entries_) {
    std::int64_t bytes = 0;
    for (const auto& group : entry.unit->groups()) {
      if (group->shard_ranks() == exchange.ranks) bytes += group->gradient_bytes();
    }
    most = std::max(most, bytes);
  }
  return most;
}

void FsdpRuntime::open_gradient_slots() {
  if (gradient_slots_.size() == 0) return;
  for (const Exchange& each : exchanges_) {
    if (gradient_slots_.has_memory(*each.ranks)) continue;
    gradient_slots_.set_memory(*each.ranks, each.reduce->allocate(gradient_slots_.size() * slot_bytes(each)));
    if (log_) {
      log_->info("gradients of group '", each.ranks->group().name, "' are summed ", each.reduce->description());
    }
  }
}

void FsdpRuntime::provide_gradients(FsdpUnit& unit) {
  const GradientSlots::Allocate allocate = gradient_slots_.memory_of(unit.index());
  unit.begin_gradients([&](const FlatGroup& group) {
    if (allocate) return allocate(*group.shard_ranks(), group.gradient_bytes());
    return at::empty({group.gradient_bytes()}, at::TensorOptions(device_).dtype(at::kByte));
  });
}

void FsdpRuntime::reduce(std::size_t index) {
  Entry& entry = entries_[index];
  entry.owes_reduction = false;
  if (entry.unit->gradient_bytes() == 0) return;
  if (!entry.unit->has_gradients()) provide_gradients(*entry.unit);
  for (const auto& group : entry.unit->groups()) group->allocate_shard_gradient();
  reduced_ = reduce_stream_->run([&] { entry.unit->reduce_gradients(/*over_replicas=*/pass_.is_last); });
  gradient_slots_.give_back(index, reduced_);
  ++num_reductions_;
  step_.add(index, OrderPrint::What::kReduced);
  if (pass_.is_last) last_.add(index, OrderPrint::What::kReduced);
}

void FsdpRuntime::begin_pass(const StagePass& pass) {
  pass_ = pass;
  if (pass.kind != StagePassKind::kBackward) return order_.begin_microbatch();
  pass.part == BackwardPart::kWeight ? begin_weight_gradients() : order_.resume(pass.microbatch);
}

void FsdpRuntime::end_pass() {
  if (pass_.kind == StagePassKind::kForward) return order_.pause(pass_.microbatch);
  pass_.part == BackwardPart::kWeight ? reduce_waiting(/*all=*/true) : end_calls();
  reduce_rest();
}

void FsdpRuntime::begin_weight_gradients() {
  for (Entry& entry : entries_) {
    entry.owes_reduction = entry.is_used;  // all microbatches use the same units
    entry.unit->begin_arrivals();
  }
  num_waiting_ = entries_.size();
}

// Deferred products run in the order of backward. All ranks reduce in this order, whichever gradient is complete first.
void FsdpRuntime::reduce_waiting(bool all) {
  while (reduces_now() && num_waiting_ > 0) {
    const Entry& entry = entries_[num_waiting_ - 1];
    if (entry.owes_reduction && !all && !entry.unit->has_all_gradients()) return;
    --num_waiting_;
    if (entry.owes_reduction) reduce(num_waiting_);
  }
}

void FsdpRuntime::end_calls() {
  while (!order_.is_at_start()) step_back();  // the calls that backward left out
  order_.end_microbatch();
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    const Entry& entry = entries_[index];
    if (entry.arena_index || entry.unit->stays_gathered()) release(index);
  }
}

void FsdpRuntime::reduce_rest() {
  if (!reduces_now()) return;
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    if (entries_[index].owes_reduction || entries_[index].unit->has_gradients()) reduce(index);
  }
  if (!pass_.is_last) return;
  reduced_ = reduce_stream_->run([&] {
    for (const Entry& entry : entries_) entry.unit->sum_over_replicas();
    compare_ranks();
  });
}

void FsdpRuntime::compare_ranks() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> spreads;
  for (const Exchange& each : exchanges_) spreads.push_back(step_.spread(*each.ranks));
  for (const auto& ranks : replicas_) spreads.push_back(last_.spread(*ranks));
  if (!spreads.empty()) disagreement_ = at::stack(spreads).sum();
}

void FsdpRuntime::finish() {
  end_reading();
  reduced_.wait();
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    release(index);
    entries_[index].unit->publish_gradients();
  }
}

void FsdpRuntime::clear() {
  reduced_.wait();  // after a step that has not been finished
  for (Entry& entry : entries_) {
    entry.unit->clear_gradients();
    entry.is_used = entry.owes_reduction = false;
  }
  gradient_slots_.clear();
  step_.clear();
  last_.clear();
  disagreement_ = at::Tensor();
}

void FsdpRuntime::offload(const OffloadContext& context) {
  D9D_CHECK(arena_ && !is_offloaded_, StateError, "[parallelism::fsdp] expected parameters on their device, got ",
            is_offloaded_ ? "some that are offloaded already" : "none: call materialize() first", ".");
  std::vector<at::Tensor> slices;
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    release(index);
    entries_[index].own_memory = at::Tensor();
    for (const auto& group : entries_[index].unit->groups()) {
      group->clear_gradients();
      for (const at::Tensor& slice : group->slices()) slices.push_back(slice);
    }
  }
  gradient_slots_.clear();
  arena_->free();
  close_exchanges();
  offloaded_ = offload_tensors(slices, context.options);
  is_offloaded_ = true;
}

void FsdpRuntime::onload(const OnloadContext& /*context*/) {
  D9D_CHECK(is_offloaded_, StateError, "[parallelism::fsdp] expected offloaded parameters, got some on their device.");
  onload_tensors(offloaded_);
  is_offloaded_ = false;
}

void FsdpRuntime::abandon() {
  reduced_.wait();
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    entries_[index].ready.wait();  // a gather may still write memory that is about to be released
    release(index);
    entries_[index].unit->abandon();
    entries_[index].in_backward = false;
  }
  clear();
  order_.abandon();
  gradient_slots_.abandon();
  is_reading_ = false;
  for (const Exchange& each : exchanges_) each.gather->abandon();
}

void FsdpRuntime::close_exchanges() {
  for (Exchange& each : exchanges_) {
    each.gather->close();
    gradient_slots_.drop_memory(*each.ranks);
    each.reduce->close();
  }
}

void FsdpRuntime::close() { close_exchanges(); }

}  // namespace d9d
