#include "d9d/parallelism/fsdp/gradient_flow.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/dtype/scalar_type.h"

namespace d9d {

void GradientFlow::materialize(at::Device device) {
  device_ = device;
  stream_.emplace(device);
  uses_.resize(units_.size());
  // On a GPU there are two slots, because the next unit fills one while the reduction of the other overlaps backward.
  if (!reduces_on_last_) slots_ = GradientSlots(device.is_cpu() ? 1 : 2);
}

void GradientFlow::set_gradient_dtype(std::optional<Dtype> dtype) {
  for (const auto& unit : units_) {
    for (const auto& group : unit->groups()) {
      const c10::ScalarType wanted = gradient_dtype_of(group->dtype(), dtype);
      const bool is_open =
          group->has_gradients() || (group->shard_ranks() != nullptr && slots_.has_memory(*group->shard_ranks()));
      D9D_CHECK(wanted == group->gradient_dtype() || !is_open, StateError,
                "[parallelism::fsdp] expected gradients of '", unit->name(), "' in ", group->gradient_dtype(),
                " as in the steps before, got ", wanted, ". Call close() first.");
      group->set_gradient_dtype(wanted);
    }
  }
}

// Returns the most gradient bytes that one unit sums over the ranks of the exchange.
std::int64_t GradientFlow::slot_bytes(const ShardExchange& exchange) const {
  std::int64_t most = 0;
  for (const auto& unit : units_) {
    std::int64_t bytes = 0;
    for (const auto& group : unit->groups()) {
      if (group->shard_ranks() == exchange.ranks) bytes += group->gradient_bytes();
    }
    most = std::max(most, bytes);
  }
  return most;
}

void GradientFlow::open_slots(const std::optional<Logger>& log) {
  if (slots_.size() == 0) return;
  for (const ShardExchange& each : exchanges_.all()) {
    if (slots_.has_memory(*each.ranks)) continue;
    slots_.set_memory(*each.ranks, each.reduce->allocate(slots_.size() * slot_bytes(each)));
    if (log && !has_logged_)
      log->info("gradients of group '", each.ranks->group().name, "' are summed ", each.reduce->description());
  }
  has_logged_ = true;
}

void GradientFlow::begin(const StagePass& pass) {
  pass_ = pass;
  if (pass.kind != StagePassKind::kBackward || pass.part != BackwardPart::kWeight) return;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    uses_[i].owes_reduction = uses_[i].in_step;  // all microbatches use the same units
    units_[i]->begin_arrivals();
  }
  num_waiting_ = units_.size();
}

void GradientFlow::take_slot(std::size_t unit) {
  if (units_[unit]->gradient_bytes() > 0 && pass_.part != BackwardPart::kInput) slots_.take(unit);
}

void GradientFlow::provide_memory(FsdpUnit& unit) {
  const GradientSlots::Allocate allocate = slots_.memory_of(unit.index());
  unit.begin_gradients([&](const FlatGroup& group) {
    if (allocate) return allocate(*group.shard_ranks(), group.gradient_bytes());
    return at::empty({group.gradient_bytes()}, at::TensorOptions(device_).dtype(at::kByte));
  });
}

void GradientFlow::finish(std::size_t unit) {
  if (reduces_now()) reduce(unit);
}

void GradientFlow::reduce_waiting(bool all) {
  while (pass_.part == BackwardPart::kWeight && reduces_now() && num_waiting_ > 0) {
    const std::size_t unit = num_waiting_ - 1;
    if (uses_[unit].owes_reduction && !all && !units_[unit]->has_all_gradients()) return;
    --num_waiting_;
    if (uses_[unit].owes_reduction) reduce(unit);
  }
}

void GradientFlow::reduce(std::size_t index) {
  FsdpUnit& unit = *units_[index];
  uses_[index].owes_reduction = false;
  if (unit.gradient_bytes() == 0) return;
  if (!unit.has_gradients()) provide_memory(unit);
  for (const auto& group : unit.groups()) group->allocate_shard_gradient();
  const NamedRange range([&] { return cat("reduce ", unit.name()); });
  reduced_ = stream_->run([&] { unit.reduce_gradients(/*over_replicas=*/pass_.is_last); });
  slots_.give_back(index, reduced_);
  ++num_reductions_;
  print_.add(index, OrderPrint::What::kReduced);
  if (pass_.is_last) last_.add(index, OrderPrint::What::kReduced);
}

void GradientFlow::reduce_rest() {
  if (!reduces_now()) return;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (uses_[i].owes_reduction || units_[i]->has_gradients()) reduce(i);
  }
  if (!pass_.is_last) return;
  reduced_ = stream_->run([&] {
    for (const auto& unit : units_) unit->sum_over_replicas();
    compare_ranks();
  });
}

void GradientFlow::compare_ranks() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> spreads;
  for (const ShardExchange& each : exchanges_.all()) spreads.push_back(print_.spread(*each.ranks));
  for (const auto& ranks : exchanges_.replicas()) spreads.push_back(last_.spread(*ranks));
  if (!spreads.empty()) disagreement_ = at::stack(spreads).sum();
}

void GradientFlow::clear() {
  for (const auto& unit : units_) unit->clear_gradients();
  std::ranges::fill(uses_, Use());
  slots_.clear();
  last_.clear();
  disagreement_ = at::Tensor();
}

void GradientFlow::close() {
  for (const ShardExchange& each : exchanges_.all()) {
    slots_.drop_memory(*each.ranks);
    each.reduce->close();
  }
}

}  // namespace d9d
