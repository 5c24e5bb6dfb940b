#include "d9d/kernels/embedding/embedding.h"

#include <array>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/embedding/embedding_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Adds rows[i] to sums[ids[i]] for all i, in the dtype of the sums.
void add_rows(const at::Tensor& sums, const at::Tensor& ids, const at::Tensor& rows) {
  if (!rows.is_cpu()) return detail::add_rows_cuda(sums, ids, rows);
  sums.index_add_(0, ids.reshape({-1}), rows.reshape({-1, rows.size(-1)}).to(sums.scalar_type()));
}

// If there are more ids than this, LibTorch's backward on CUDA sorts them and sums the rows of each id in the opmath
// dtype. For fewer ids it adds partial sums of 32 rows in the dtype of the rows.
constexpr std::int64_t kMaxUnsortedIds = 3072;

// The whole gradient, rounded once to the dtype of the rows.
at::Tensor device_gradient(const at::Tensor& ids, const at::Tensor& rows, std::int64_t num_rows) {
  at::Tensor all_ids = ids.reshape({-1}), all_rows = rows.reshape({-1, rows.size(-1)});
  const std::int64_t num_missing = kMaxUnsortedIds + 1 - all_ids.numel();
  if (num_missing > 0 && at::toOpMathType(rows.scalar_type()) != rows.scalar_type()) {
    all_ids = at::constant_pad_nd(all_ids, {0, num_missing});  // adds zeros to the gradient of row 0
    all_rows = at::constant_pad_nd(all_rows, {0, 0, 0, num_missing});
  }
  return at::embedding_dense_backward(all_rows, all_ids, num_rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

// The whole gradient, on the CPU in the opmath dtype, on CUDA in the dtype of the rows.
at::Tensor dense_gradient(const at::Tensor& ids, const at::Tensor& rows, std::int64_t num_rows) {
  if (!rows.is_cpu()) return device_gradient(ids, rows, num_rows);
  const auto dtype = at::toOpMathType(rows.scalar_type());
  const at::Tensor sums = at::zeros({num_rows, rows.size(-1)}, rows.options().dtype(dtype));
  add_rows(sums, ids, rows);
  return sums;
}

// Undefined if it went to the place.
at::Tensor table_gradient(const at::Tensor& ids, const at::Tensor& rows, std::int64_t num_rows,
                          const std::optional<GradientPlace>& place) {
  if (!place) return dense_gradient(ids, rows, num_rows).to(rows.scalar_type());
  const bool is_wide = at::toOpMathType(place->tensor.scalar_type()) == place->tensor.scalar_type();
  const bool is_added = rows.is_cpu() ? is_wide : detail::can_add_rows_cuda(place->tensor, rows);
  if (!is_added) {
    place->put(dense_gradient(ids, rows, num_rows));
    return {};
  }
  if (!place->has_values) place->tensor.zero_();
  add_rows(place->tensor, ids, rows);
  return {};
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table, const at::Tensor& ids) {
    context->save_for_backward({ids});
    context->saved_data["num_rows"] = table.size(0);
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("embedding_rows");
    const at::Tensor ids = context->get_saved_variables().front(), &rows = grads.front();
    const std::int64_t num_rows = context->saved_data["num_rows"].toInt();
    const std::array reads = {ids, rows};
    const auto product = [num_rows](auto tensors, const auto& place) {
      return table_gradient(tensors[0], tensors[1], num_rows, place);
    };
    return {make_gradient(/*input=*/0, reads, product), at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding_rows(const at::Tensor& table, const at::Tensor& ids) { return Embedding::apply(table, ids); }

}  // namespace d9d::kernels
