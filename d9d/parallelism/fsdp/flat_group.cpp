#include "d9d/parallelism/fsdp/flat_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/modules/freeze_guard.h"
#include "d9d/parallelism/fsdp/flat_alignment.h"

namespace d9d {
namespace {

// Returns the number of elements of local() on the rank with the largest part, which is the first rank of each axis.
std::int64_t largest_numel(const Parameter& parameter) {
  const std::vector<std::int64_t> first(parameter.mesh().axes().size(), 0);
  return local_box(parameter.global_shape(), parameter.mesh(), parameter.placements(), first).numel();
}

}  // namespace

FlatGroup::FlatGroup(NamedParameters parameters, FsdpAxes axes)
    : parameters_(std::move(parameters)),
      axes_(std::move(axes)),
      dtype_(parameters_.front().second->local().scalar_type()),
      stored_dtype_(parameters_.front().second->stored_dtype()),
      gradient_dtype_(gradient_dtype_of(dtype_, std::nullopt)),
      requires_grad_(parameters_.front().second->requires_grad()) {
  for (const auto& [name, parameter] : parameters_) {
    offsets_.push_back(padded_numel_);
    padded_numel_ += round_up(largest_numel(*parameter), kFlatAlignment);
  }
  padded_numel_ = round_up(padded_numel_, kFlatAlignment * axes_.mesh.axis_size(axes_.shard_axis));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i].second;
    const FlatShard flat{.padded_numel = padded_numel_, .offset_in_unit = offsets_[i]};
    parameter.place(axes_.mesh, axes_.shard_axis, flat, flat);
    for (const std::string& axis : axes_.replicate_axes) {
      parameter.place(axes_.mesh, axis, Replicate{}, Partial{ReduceOp::kSum});
    }
  }
}

void FlatGroup::set_gradient_dtype(c10::ScalarType dtype) {
  if (gradient_dtype_ == dtype) return;
  clear_gradients();
  gradient_dtype_ = dtype;
}

std::int64_t FlatGroup::gathered_bytes() const {
  return padded_numel_ * static_cast<std::int64_t>(elementSize(dtype_));
}
std::int64_t FlatGroup::gradient_bytes() const {
  return requires_grad_ ? padded_numel_ * static_cast<std::int64_t>(elementSize(gradient_dtype_)) : 0;
}

void FlatGroup::check_unchanged() const {
  for (const auto& [name, parameter] : parameters_) {
    check_requires_grad(name, *parameter, requires_grad_);
    D9D_CHECK(parameter->local().scalar_type() == dtype_, StateError, "[parallelism::fsdp] expected ", name, " in ",
              dtype_, " as when it was sharded, got ", parameter->local().scalar_type(),
              ". Convert the module before parallelize_fsdp().");
  }
}

void FlatGroup::connect() {
  check_unchanged();
  shard_ranks_ = axes_.mesh.communicator(axes_.shard_axis, Traffic::kParameters);
  const DeviceMesh replicas = axes_.mesh.slice(axes_.replicate_axes);
  if (replicas.num_ranks() > 1) replica_ranks_ = replicas.communicator(Traffic::kParameters);
}

void FlatGroup::materialize(std::shared_ptr<ShardGather> gather, std::shared_ptr<ShardReduce> reduce) {
  gather_ = std::move(gather);
  reduce_ = std::move(reduce);
  shard_ = gather_->allocate(slice_bytes()).view(dtype_);
  stored_shard_ = stored_dtype_ ? at::zeros(shard_.sizes(), shard_.options().dtype(*stored_dtype_)) : shard_;
  flat_.emplace(padded_numel_, shard_.options());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i].second;
    const at::Tensor& local = parameter.local();
    const at::Tensor view = flat_->tensor().narrow(0, offsets_[i], local.numel()).view(local.sizes());
    parameter.attach_flat(view.variable_data(), slice_of(stored_shard_, i));
  }
}

at::Tensor FlatGroup::slice_of(const at::Tensor& shard, std::size_t index) const {
  const Parameter& parameter = *parameters_[index].second;
  const FlatRange range = flat_range(parameter.local().numel(), axes_.mesh, parameter.placements());
  const std::int64_t first = shard_ranks_->rank() * shard.numel();  // first element of this rank's slice in the group
  const std::int64_t start = range.numel() == 0 ? 0 : offsets_[index] + range.begin - first;
  return shard.narrow(0, start, range.numel());
}

std::vector<at::Tensor> FlatGroup::slices() const {
  if (stored_shard_.is_same(shard_)) return {shard_};
  return {shard_, stored_shard_};
}

void FlatGroup::update_gathered_slice() {
  if (stored_shard_.is_same(shard_)) return;
  const at::NoGradGuard no_grad;
  shard_.copy_(stored_shard_);
}

void FlatGroup::gather(const at::Tensor& memory) {
  check_unchanged();
  flat_->attach(memory);
  const at::NoGradGuard no_grad;
  gather_->gather(flat_->tensor(), shard_);
}

void FlatGroup::begin_gradients(const at::Tensor& memory) {
  full_grad_ = memory.view(gradient_dtype_);
  took_gradient_.assign(parameters_.size(), false);
}

at::Tensor FlatGroup::full_gradient(std::size_t index) const {
  const at::Tensor& leaf = parameters_[index].second->local();
  return full_grad_.narrow(0, offsets_[index], leaf.numel()).view(leaf.sizes());
}

GradientPlace FlatGroup::gradient_place(std::size_t index) {
  const bool had_values = took_gradient_[index];
  took_gradient_[index] = true;
  return {.tensor = full_gradient(index), .has_values = had_values};
}

void FlatGroup::take_gradient(std::size_t index) {
  const at::NoGradGuard no_grad;
  const at::Tensor grad = std::exchange(parameters_[index].second->local().mutable_grad(), at::Tensor());
  gradient_place(index).put(grad);
}

void FlatGroup::reduce_gradients(bool over_replicas) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!took_gradient_[i]) full_gradient(i).zero_();
  }
  D9D_CHECK(over_replicas || !is_summed_over_replicas_, StateError,
            "[parallelism::fsdp] expected no microbatch after the last one of a step, got gradients of ",
            parameters_.front().first, ". Call clear() between steps.");
  allocate_shard_gradient();
  const bool adds = has_shard_grad_ && !is_summed_over_replicas_;
  const at::Tensor sum = is_summed_over_replicas_ ? at::empty_like(shard_grad_) : shard_grad_;
  reduce_->reduce(sum, full_grad_, adds);
  has_shard_grad_ = true;
  keep_for_current_stream(full_grad_);
  full_grad_ = at::Tensor();
  if (over_replicas && replica_ranks_ != nullptr) {
    replica_ranks_->all_reduce(sum, ReduceOp::kSum).wait();
    is_summed_over_replicas_ = true;
  }
  if (!sum.is_same(shard_grad_)) shard_grad_.add_(sum);
}

void FlatGroup::sum_over_replicas() {
  if (replica_ranks_ == nullptr || !has_shard_grad_ || is_summed_over_replicas_) return;
  const at::NoGradGuard no_grad;
  replica_ranks_->all_reduce(shard_grad_, ReduceOp::kSum).wait();
  is_summed_over_replicas_ = true;
}

void FlatGroup::allocate_shard_gradient() {
  if (shard_grad_.defined() || !requires_grad_) return;
  shard_grad_ = at::empty({padded_numel_ / shard_ranks_->size()}, shard_.options().dtype(gradient_dtype_));
}

void FlatGroup::publish_gradients() {
  if (!requires_grad_) return;
  if (!has_shard_grad_) {
    allocate_shard_gradient();
    shard_grad_.zero_();
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].second->stored().mutable_grad() = slice_of(shard_grad_, i);
  }
}

void FlatGroup::clear_gradients() {
  full_grad_ = at::Tensor();
  shard_grad_ = at::Tensor();
  has_shard_grad_ = false;
  is_summed_over_replicas_ = false;
  for (const auto& [name, parameter] : parameters_) {
    parameter->local().mutable_grad() = at::Tensor();
    parameter->stored().mutable_grad() = at::Tensor();
  }
}

}  // namespace d9d
