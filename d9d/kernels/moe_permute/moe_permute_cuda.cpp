#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"
#include "d9d/kernels/moe_permute/moe_permute_kernel.h"

namespace d9d::kernels::detail {
namespace {

// A contiguous version of a tensor. Keeps the memory alive that data() points to.
struct Contiguous {
  explicit Contiguous(const at::Tensor& of) : tensor(of.defined() ? of.contiguous() : of) {}
  [[nodiscard]] const void* data() const { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
  at::Tensor tensor;
};

int value_size(const at::Tensor& values) { return values.defined() ? static_cast<int>(values.element_size()) : 0; }

MoePermuteShape shape_of(const at::Tensor& rows, const Contiguous& slot_to_row) {
  return {.dtype = dtype_of(rows),
          .num_tokens = slot_to_row.tensor.size(0),
          .num_choices = slot_to_row.tensor.size(1),
          .num_features = rows.size(1),
          .slot_to_row = slot_to_row.tensor.const_data_ptr<std::int64_t>()};
}

at::Tensor wide(const at::Tensor& weights, const at::Tensor& rows) {
  return weights.defined() ? weights.to(at::toOpMathType(rows.scalar_type())) : weights;
}

void* data_or_null(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }

}  // namespace

bool is_carried(const at::Tensor& values) {
  return values.element_size() == 2 || values.element_size() == 4 || values.element_size() == 8;
}

std::pair<at::Tensor, at::Tensor> scatter_tokens_cuda(const at::Tensor& tokens, const at::Tensor& values,
                                                      const at::Tensor& slot_to_row, std::int64_t num_rows) {
  const c10::DeviceGuard guard(tokens.device());
  const Contiguous from(tokens), slots(slot_to_row), slot_values(values);
  at::Tensor rows = at::empty({num_rows, tokens.size(1)}, tokens.options());
  at::Tensor row_values = values.defined() ? at::empty({num_rows}, values.options()) : at::Tensor();
  launch_scatter_tokens({.shape = shape_of(tokens, slots),
                         .tokens = from.data(),
                         .rows = rows.mutable_data_ptr(),
                         .value_size = value_size(values),
                         .slot_values = slot_values.data(),
                         .row_values = data_or_null(row_values)},
                        current_cuda_stream(tokens.device()));
  return {rows, row_values};
}

std::pair<at::Tensor, at::Tensor> combine_rows_cuda(const at::Tensor& rows, const at::Tensor& weights,
                                                    const at::Tensor& values, const at::Tensor& slot_to_row) {
  const c10::DeviceGuard guard(rows.device());
  const Contiguous from(rows), slots(slot_to_row), row_values(values), slot_weights(wide(weights, rows));
  at::Tensor tokens = at::empty({slot_to_row.size(0), rows.size(1)}, rows.options());
  at::Tensor slot_values = values.defined() ? at::empty(slot_to_row.sizes(), values.options()) : at::Tensor();
  launch_combine_rows({.shape = shape_of(rows, slots),
                       .rows = from.data(),
                       .slot_weights = slot_weights.data(),
                       .tokens = tokens.mutable_data_ptr(),
                       .value_size = value_size(values),
                       .row_values = row_values.data(),
                       .slot_values = data_or_null(slot_values)},
                      current_cuda_stream(rows.device()));
  return {tokens, slot_values};
}

std::pair<at::Tensor, at::Tensor> combine_rows_backward_cuda(const at::Tensor& grad_tokens, const at::Tensor& rows,
                                                             const at::Tensor& weights, const at::Tensor& slot_to_row,
                                                             std::int64_t num_rows, const CombineRowsWanted& wanted) {
  const c10::DeviceGuard guard(grad_tokens.device());
  const Contiguous grads(grad_tokens), from(rows), slots(slot_to_row), slot_weights(wide(weights, grad_tokens));
  at::Tensor grad_rows = wanted.rows ? at::empty({num_rows, grad_tokens.size(1)}, grad_tokens.options()) : at::Tensor();
  at::Tensor grad_weights = wanted.weights ? at::empty(weights.sizes(), slot_weights.tensor.options()) : at::Tensor();
  launch_combine_rows_backward({.shape = shape_of(grad_tokens, slots),
                                .rows = from.data(),
                                .slot_weights = slot_weights.data(),
                                .grad_tokens = grads.data(),
                                .grad_rows = data_or_null(grad_rows),
                                .grad_weights = data_or_null(grad_weights)},
                               current_cuda_stream(grad_tokens.device()));
  return {grad_rows, wanted.weights ? grad_weights.to(weights.scalar_type()) : grad_weights};
}

MultihotChoices indices_to_multihot_cuda(const at::Tensor& indices, const at::Tensor& probs, std::int64_t num_experts) {
  const c10::DeviceGuard guard(probs.device());
  const Contiguous ids(indices), values(probs);
  MultihotChoices result{.mask = at::empty({indices.size(0), num_experts}, probs.options().dtype(at::kBool)),
                         .probs = at::empty({indices.size(0), num_experts}, probs.options())};
  launch_indices_to_multihot({.dtype = dtype_of(probs),
                              .num_tokens = indices.size(0),
                              .num_choices = indices.size(1),
                              .num_experts = num_experts,
                              .indices = ids.tensor.const_data_ptr<std::int64_t>(),
                              .probs = values.data(),
                              .mask = result.mask.mutable_data_ptr<bool>(),
                              .dense = result.probs.mutable_data_ptr()},
                             current_cuda_stream(probs.device()));
  return result;
}

}  // namespace d9d::kernels::detail
