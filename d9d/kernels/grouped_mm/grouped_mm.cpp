#include "d9d/kernels/grouped_mm/grouped_mm.h"

#include <array>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/grouped_mm/grouped_mm_impl.h"

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

at::Tensor put_or_return(at::Tensor gradient, const std::optional<GradientPlace>& place) {
  if (!place) return gradient;
  place->put(gradient);
  return {};
}

struct GroupedMMLoop : torch::autograd::Function<GroupedMMLoop> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w,
                            const std::vector<std::int64_t>& counts) {
    context->set_materialize_grads(false);
    context->save_for_backward({w.requires_grad() ? x : at::Tensor(), x.requires_grad() ? w : at::Tensor()});
    context->saved_data["counts"] = counts;
    return detail::grouped_gemm_loop(x, w, counts);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("grouped_mm");
    variable_list inputs(3);
    if (!grads[0].defined()) return inputs;
    const auto saved = context->get_saved_variables();
    const auto counts = context->saved_data["counts"].toIntVector();
    if (context->needs_input_grad(0)) {
      inputs[0] = detail::grouped_gemm_loop(grads[0], saved[1].transpose(1, 2), counts);
    }
    if (!context->needs_input_grad(1)) return inputs;
    const std::array reads = {saved[0], grads[0]};
    inputs[1] = make_gradient(/*input=*/1, reads, [counts](auto tensors, const auto& place) {
      return put_or_return(detail::grouped_gemm_wgrad_loop(tensors[0], tensors[1], counts), place);
    });
    return inputs;
  }
};

// Implementations that do not need the host counts. where() is the description of the groups that the other functions
// take. times_weights() returns the sum of the grouped products x[i] @ w[i] of one or two pairs; outer_rows() returns
// the gradient of a weight.
struct TorchProducts {
  static at::Tensor where(const ExpertTokenGroups& groups) {
    return groups.offsets().narrow(0, 1, groups.num_groups());  // ends
  }
  static at::Tensor times_weights(at::ArrayRef<at::Tensor> x, at::ArrayRef<at::Tensor> w, const at::Tensor& where) {
    at::Tensor sum = detail::grouped_gemm_torch(x[0], w[0], where);
    return x.size() == 1 ? sum : sum.add_(detail::grouped_gemm_torch(x[1], w[1], where));
  }
  static constexpr auto outer_rows = detail::grouped_gemm_wgrad_torch;
};
struct OwnProducts {
  static at::Tensor where(const ExpertTokenGroups& groups) { return groups.offsets(); }
  static constexpr auto times_weights = detail::grouped_gemm_cuda;
  static constexpr auto outer_rows = detail::grouped_gemm_wgrad_cuda;
};

template <class Products>
struct GroupedMMOnDevice : torch::autograd::Function<GroupedMMOnDevice<Products>> {
  // The gradient of a weight; undefined if it was written to the weight's gradient place. Our kernel writes to the
  // place directly if it needs neither to add nor to convert the dtype.
  static at::Tensor weight_gradient(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& where,
                                    const std::optional<GradientPlace>& place) {
    if constexpr (std::is_same_v<Products, OwnProducts>) {
      if (place && !place->has_values && place->tensor.scalar_type() == x.scalar_type()) {
        detail::write_grouped_gemm_wgrad_cuda(place->tensor, x, grad, where);
        return {};
      }
    }
    return put_or_return(Products::outer_rows(x, grad, where), place);
  }

  // Saves x if a weight needs a gradient, the weights if x does, and `where`.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList w,
                               const at::Tensor& where) {
    context->set_materialize_grads(false);
    variable_list saved(2 + w.size());
    variable_list outputs;
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (w[i].requires_grad()) saved[0] = x;
      if (x.requires_grad()) saved[1 + i] = w[i];
      outputs.push_back(Products::times_weights(x, w[i], where));
    }
    saved.back() = where;
    context->save_for_backward(std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    detail::check_first_order("grouped_mm");
    variable_list inputs(2 + grads.size());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& where = saved.back();
    variable_list defined;
    variable_list weights;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      defined.push_back(grads[i]);
      if (context->needs_input_grad(0)) weights.push_back(saved[1 + i].transpose(1, 2));
      if (!context->needs_input_grad(1 + i)) continue;
      const std::array reads = {saved[0], grads[i], where};
      inputs[1 + i] = make_gradient(1 + i, reads, [](auto tensors, const auto& place) {
        return weight_gradient(tensors[0], tensors[1], tensors[2], place);
      });
    }
    if (!weights.empty()) inputs[0] = Products::times_weights(defined, weights, where);
    return inputs;
  }
};

// The implementation that runs if `wanted` is asked for.
GroupedMMBackend backend_for(GroupedMMBackend wanted, const at::Tensor& x, const ExpertTokenGroups& groups) {
  if (wanted == GroupedMMBackend::kHopper && !detail::has_grouped_mm_kernels(x, groups.num_groups())) {
    wanted = GroupedMMBackend::kTorch;
  }
  if (x.is_meta()) return GroupedMMBackend::kTorch;  // the loop reads how many rows each expert has
  const bool has_kernel_of_torch = x.scalar_type() != at::kDouble;
  return wanted == GroupedMMBackend::kTorch && !has_kernel_of_torch ? GroupedMMBackend::kEager : wanted;
}

}  // namespace

std::vector<at::Tensor> grouped_mms(const at::Tensor& x, const std::vector<at::Tensor>& w,
                                    const ExpertTokenGroups& groups, GroupedMMBackend backend) {
  D9D_CHECK(w.size() == 1 || (w.size() == 2 && w[0].sizes() == w[1].sizes()), ConfigError,
            "[kernels::grouped_mm] expected one weight or two of one shape, got ", w.size(),
            ". Multiply by the others apart.");
  for (const at::Tensor& each : w) check_arguments(x, each, groups);
  switch (backend_for(backend, x, groups)) {
    case GroupedMMBackend::kHopper:
      return GroupedMMOnDevice<OwnProducts>::apply(x, at::TensorList(w), OwnProducts::where(groups));
    case GroupedMMBackend::kTorch:
      return GroupedMMOnDevice<TorchProducts>::apply(x, at::TensorList(w), TorchProducts::where(groups));
    case GroupedMMBackend::kEager:
      break;
  }
  std::vector<at::Tensor> results;
  for (const at::Tensor& each : w)
    results.push_back(GroupedMMLoop::apply(x, each, counts_adding_up_to(x.size(0), groups)));
  return results;
}

at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const ExpertTokenGroups& groups,
                      GroupedMMBackend backend) {
  return grouped_mms(x, {w}, groups, backend).front();
}

}  // namespace d9d::kernels
