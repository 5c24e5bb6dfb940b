#include "d9d/kernels/grouped_mm/grouped_mm.h"

#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/first_order.h"
#include "d9d/kernels/grouped_mm/grouped_mm_aten.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_arguments(const at::Tensor& x, const at::Tensor& w, const ExpertTokenGroups& groups) {
  D9D_CHECK(x.dim() == 2 && w.dim() == 3 && x.size(1) == w.size(1), ConfigError,
            "[kernels::grouped_mm] expected x [N, in] and w [groups, in, out], got x ", x.sizes(), " and w ", w.sizes(),
            ". Make the features agree.");
  D9D_CHECK(groups.num_groups() == w.size(0), ConfigError,
            "[kernels::grouped_mm] expected as many token groups as weights = ", w.size(0), ", got ",
            groups.num_groups(), ". Group the tokens by the experts that live here.");
  D9D_CHECK(x.scalar_type() == w.scalar_type() && at::isFloatingType(x.scalar_type()), ConfigError,
            "[kernels::grouped_mm] expected x and w of one floating dtype, got ", x.scalar_type(), " and ",
            w.scalar_type(), ". Cast one of the two.");
}

const std::vector<std::int64_t>& counts_adding_up_to(std::int64_t num_rows, const ExpertTokenGroups& groups) {
  const auto& counts = groups.host_counts();
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  D9D_CHECK(sum == num_rows, ConfigError, "[kernels::grouped_mm] expected group counts that add up to the ", num_rows,
            " rows of x, got ", sum, ". Pass the groups that x was permuted with.");
  return counts;
}

struct GroupedMMLoop : torch::autograd::Function<GroupedMMLoop> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w,
                            const std::vector<std::int64_t>& counts) {
    context->set_materialize_grads(false);
    context->save_for_backward({w.requires_grad() ? x : at::Tensor(), x.requires_grad() ? w : at::Tensor()});
    context->saved_data["counts"] = counts;
    return detail::rows_times_weights_loop(x, w, counts);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("grouped_mm");
    variable_list inputs(3);
    if (!grads[0].defined()) return inputs;
    const auto saved = context->get_saved_variables();
    const auto counts = context->saved_data["counts"].toIntVector();
    if (context->needs_input_grad(0)) {
      inputs[0] = detail::rows_times_weights_loop(grads[0], saved[1].transpose(1, 2), counts);
    }
    if (context->needs_input_grad(1)) inputs[1] = detail::rows_outer_rows_loop(saved[0], grads[0], counts);
    return inputs;
  }
};

struct GroupedMMTorch : torch::autograd::Function<GroupedMMTorch> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& ends) {
    context->set_materialize_grads(false);
    context->save_for_backward({w.requires_grad() ? x : at::Tensor(), x.requires_grad() ? w : at::Tensor(), ends});
    return detail::rows_times_weights_torch(x, w, ends);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("grouped_mm");
    variable_list inputs(3);
    if (!grads[0].defined()) return inputs;
    const auto saved = context->get_saved_variables();
    if (context->needs_input_grad(0)) {
      inputs[0] = detail::rows_times_weights_torch(grads[0], saved[1].transpose(1, 2), saved[2]);
    }
    if (context->needs_input_grad(1)) inputs[1] = detail::rows_outer_rows_torch(saved[0], grads[0], saved[2]);
    return inputs;
  }
};

}  // namespace

at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const ExpertTokenGroups& groups,
                      GroupedMMBackend backend) {
  check_arguments(x, w, groups);
  const bool has_grouped_kernel = x.scalar_type() != at::kDouble;
  if (backend == GroupedMMBackend::kTorch && has_grouped_kernel) {
    return GroupedMMTorch::apply(x, w, groups.offsets().narrow(0, 1, groups.num_groups()));
  }
  return GroupedMMLoop::apply(x, w, counts_adding_up_to(x.size(0), groups));
}

}  // namespace d9d::kernels
