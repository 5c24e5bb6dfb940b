#include "d9d/parallelism/fsdp/fsdp_unit.h"

#include <ATen/ATen.h>

#include "d9d/core/autograd/boundary.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/parallelism/fsdp/fsdp_runtime.h"

namespace d9d {

FsdpUnit::FsdpUnit(FsdpRuntime& runtime, std::string name, std::vector<std::unique_ptr<FlatGroup>> groups,
                   std::size_t num_modules, bool stays_gathered)
    : runtime_(runtime),
      name_(std::move(name)),
      groups_(std::move(groups)),
      num_modules_(num_modules),
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
  runtime_.request(*this, has_backward ? FsdpRuntime::Pass::kForward : FsdpRuntime::Pass::kWithoutGradients);
  if (!has_backward) return;
  took_part_ = true;
  on_backward(inputs, [this, keep = runtime_.shared_from_this()] { end_module_backward(); });
}

void FsdpUnit::after_forward(const TensorRefs& outputs) {
  if (at::GradMode::is_enabled() && !is_recomputing()) {
    on_backward(outputs, [this, keep = runtime_.shared_from_this()] { begin_backward(); });
  }
  if (!in_backward_) runtime_.forward_ended(*this);  // in backward: a recomputation that encloses the unit
}

void FsdpUnit::begin_backward() {
  if (!in_backward_) {
    in_backward_ = true;
    num_ended_ = 0;
    at_end_of_backward([this] { end_backward(); });  // for a module whose inputs need no gradient
  }
  runtime_.request(*this, FsdpRuntime::Pass::kBackward);
}

void FsdpUnit::end_module_backward() {
  if (++num_ended_ == num_modules_) end_backward();
}

// At the input boundary all gradients of the parameters are there: the engine runs later-made nodes first, and
// accumulations before all others.
void FsdpUnit::end_backward() {
  if (!in_backward_) return;
  in_backward_ = false;
  runtime_.backward_ended(*this);
  took_part_ = false;
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

void FsdpUnit::abandon() {
  in_backward_ = false;
  took_part_ = false;
  clear_gradients();
  if (is_gathered()) release();
}

}  // namespace d9d
