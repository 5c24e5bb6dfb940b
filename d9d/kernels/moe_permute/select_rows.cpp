#include "d9d/kernels/moe_permute/select_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/first_order.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// index_select would add gradients to zeros by atomic operations, because it does not know that rows are distinct.
struct SelectRows : torch::autograd::Function<SelectRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& rows) {
    context->set_materialize_grads(false);
    context->save_for_backward({rows});
    context->saved_data["num_rows"] = x.size(0);
    return x.index_select(0, rows);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("select_rows");
    if (!grads[0].defined()) return {{}, {}};
    const at::Tensor rows = context->get_saved_variables()[0];
    return {place_rows(grads[0], rows, context->saved_data["num_rows"].toInt()), {}};
  }
};

void check_rows(const at::Tensor& matrix, const at::Tensor& rows) {
  D9D_CHECK(matrix.dim() == 2 && rows.dim() == 1 && rows.scalar_type() == at::kLong, ConfigError,
            "[kernels::select_rows] expected a matrix and int64 rows of one dimension, got ", matrix.sizes(), " and ",
            rows.scalar_type(), " ", rows.sizes(), ". Flatten both.");
}

}  // namespace

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows) {
  check_rows(x, rows);
  return SelectRows::apply(x, rows);
}

at::Tensor place_rows(const at::Tensor& values, const at::Tensor& rows, std::int64_t num_rows) {
  check_rows(values, rows);
  D9D_CHECK(values.size(0) == rows.size(0), ConfigError, "[kernels::place_rows] expected a place for each of ",
            values.size(0), " rows, got ", rows.size(0), ". Pass the rows that were selected.");
  return at::zeros({num_rows, values.size(1)}, values.options()).index_copy(0, rows, values);
}

}  // namespace d9d::kernels
