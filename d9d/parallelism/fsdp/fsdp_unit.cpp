#include "d9d/parallelism/fsdp/fsdp_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/core/autograd/boundary.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/parallelism/fsdp/fsdp_runtime.h"

namespace d9d {

FsdpUnit::FsdpUnit(FsdpRuntime& runtime, std::size_t index, std::string name,
                   std::vector<std::unique_ptr<FlatGroup>> groups, bool stays_gathered)
    : runtime_(runtime),
      index_(index),
      name_(std::move(name)),
      groups_(std::move(groups)),
      stays_gathered_(stays_gathered) {}

std::int64_t FsdpUnit::gathered_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& group : groups_) bytes += group->gathered_bytes();
  return bytes;
}

std::int64_t FsdpUnit::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& group : groups_) bytes += group->gradient_bytes();
  return bytes;
}

bool FsdpUnit::is_gathered() const { return !groups_.empty() && groups_.front()->is_gathered(); }

void FsdpUnit::materialized() {
  for (const auto& group : groups_) {
    if (!group->requires_grad()) continue;
    for (std::size_t i = 0; i < group->parameters().size(); ++i) {
      hooks_.push_back(
          on_gradient(group->parameters()[i].second->local(),
                      {.arrived =
                           [this, group = group.get(), i](const at::Tensor& leaf) {
                             if (leaf.grad().defined()) gradient_group(*group).take_gradient(i);
                             ++num_arrived_;
                             runtime_.gradient_arrived();
                           },
                       .place = [this, group = group.get(), i] { return gradient_group(*group).gradient_place(i); }}));
    }
  }
}

FlatGroup& FsdpUnit::gradient_group(FlatGroup& group) {
  if (!has_gradients()) runtime_.provide_gradients(*this);
  return group;
}

void FsdpUnit::before_forward(const TensorRefs& inputs) {
  const bool has_backward = at::GradMode::is_enabled() && !is_recomputing();
  if (!has_backward) return runtime_.gather_for_forward(*this);
  const UnitOrder::Call call = runtime_.enter(*this);
  // When backward reaches this boundary, all gradients of the parameters are complete, or deferred to W of a split
  // backward: the engine runs nodes that were created later first, and gradient accumulations before all other nodes.
  const bool inputs_have_backward =
      on_backward(inputs, [keep = runtime_.shared_from_this(), call] { keep->end_backward(call); });
  open_calls_.push_back({.call = call, .inputs_have_backward = inputs_have_backward});
}

void FsdpUnit::after_forward(const TensorRefs& outputs) {
  const bool has_backward = at::GradMode::is_enabled() && !is_recomputing();
  if (!has_backward) return runtime_.release_after_forward(*this);
  const OpenCall open = open_calls_.back();
  open_calls_.pop_back();
  const bool outputs_have_backward = on_backward(outputs, [keep = runtime_.shared_from_this(), open] {
    if (!open.inputs_have_backward) at_end_of_backward([keep, open] { keep->end_backward(open.call); });
    keep->begin_backward(open.call);
  });
  runtime_.leave(open.call, outputs_have_backward);
}

bool FsdpUnit::gathers_by_collective() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return group->gathers_by_collective(); });
}

void FsdpUnit::update_gathered_slices() {
  for (const auto& group : groups_) group->update_gathered_slice();
}

void FsdpUnit::gather(const at::Tensor& memory) {
  std::int64_t offset = 0;
  for (const auto& group : groups_) {
    group->gather(memory.narrow(0, offset, group->gathered_bytes()));
    offset += group->gathered_bytes();
  }
}

void FsdpUnit::release() {
  for (const auto& group : groups_) group->release();
}

void FsdpUnit::begin_gradients(const std::function<at::Tensor(const FlatGroup& group)>& memory_for) {
  for (const auto& group : groups_) {
    if (group->requires_grad()) group->begin_gradients(memory_for(*group));
  }
}

bool FsdpUnit::has_gradients() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return group->has_gradients(); });
}

void FsdpUnit::reduce_gradients(bool over_replicas) {
  for (const auto& group : groups_) {
    if (group->requires_grad()) group->reduce_gradients(over_replicas);
  }
}

void FsdpUnit::sum_over_replicas() {
  for (const auto& group : groups_) group->sum_over_replicas();
}

void FsdpUnit::publish_gradients() {
  for (const auto& group : groups_) group->publish_gradients();
}

void FsdpUnit::clear_gradients() {
  for (const auto& group : groups_) group->clear_gradients();
}

}  // namespace d9d
