#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

#include <array>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/linear/linear_gemms.h"
#include "d9d/kernels/linear/low_rank_gemms.h"
#include "d9d/kernels/linear/saved_exchange.h"
#include "d9d/kernels/silu_mul/silu_mul.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_impl.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& tensor) { return tensor.view({-1, tensor.size(-1)}); }

struct SiluMulLinear : torch::autograd::Function<SiluMulLinear> {
  // a, b: of a term of low rank.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weight, const std::optional<at::Tensor>& a,
                            const std::optional<at::Tensor>& b, double scale, const RowExchangePtr& output) {
    const at::Tensor activated =
        as_matrix(gate.is_meta() ? at::empty(gate.sizes(), gate.options()) : detail::silu_mul_forward_cuda(gate, up));
    const detail::LowRankTerms terms = a ? term_of(*a, *b, scale) : detail::LowRankTerms();
    const at::Tensor hidden = a ? detail::low_rank_hidden(activated, terms) : at::Tensor();
    const auto write = [&](std::int64_t first, const at::Tensor& out) {
      const std::int64_t count = out.size(0);
      detail::write_linears({out}, activated.narrow(0, first, count), {weight}, /*biases=*/{});
      if (a) detail::add_low_rank_terms(hidden.narrow(0, first, count), terms, {out});
    };
    context->save_for_backward({gate, up, weight, hidden, a.value_or(at::Tensor()), b.value_or(at::Tensor())});
    context->saved_data["scale"] = scale;
    std::vector<std::int64_t> shape = gate.sizes().vec();
    shape.back() = weight.size(0);
    if (output) {
      detail::save_exchange(context, "output", output);
      return output->scatter({shape, gate.options()}, write, [] {});
    }
    const at::Tensor out = at::empty({activated.size(0), weight.size(0)}, gate.options());
    write(0, out);
    return out.view(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("silu_mul_linear");
    variable_list results(7);
    if (!grads[0].defined()) return results;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &weight = saved[2], &hidden = saved[3], &a = saved[4],
                     &b = saved[5];
    const bool trains_weight = context->needs_input_grad(2);
    const bool trains_a = a.defined() && context->needs_input_grad(3);
    const detail::SiluMulLinearBackward made =
        detail::empty_silu_mul_linear_backward(gate, up, trains_weight || trains_a);
    at::Tensor grad_hidden;
    const auto compute = [&](std::int64_t first, const at::Tensor& rows) {
      const auto same = [&](const at::Tensor& matrix) {
        return matrix.defined() ? as_matrix(matrix).narrow(0, first, rows.size(0)) : matrix;
      };
      detail::write_silu_mul_linear_backward_cuda({same(made.gate), same(made.up), same(made.product)}, rows,
                                                  same(gate), same(up), weight, grad_hidden, a);
    };
    bool is_computed = false;
    if (const RowExchangePtr exchange = detail::saved_exchange(context, "output")) {
      const auto pays = [&](std::int64_t num_rows) {
        return !a.defined() && detail::pays_silu_mul_linear_kernel(num_rows, gate.size(-1));
      };
      const bool by_blocks = pays(grads[0].size(1)), by_sequences = pays(gate.size(1));
      is_computed = by_blocks || by_sequences;
      const auto nothing = [](std::int64_t, const at::Tensor&) {};
      grads[0] = by_blocks      ? exchange->gather(grads[0], compute)
                 : by_sequences ? exchange->gather_sequences(grads[0], compute)
                                : exchange->gather(grads[0], nothing);
    }
    const at::Tensor grad_out = as_matrix(grads[0].contiguous());
    if (a.defined()) {
      grad_hidden =
          detail::low_rank_hidden_gradient({grad_out}, term_of(a, b, context->saved_data["scale"].toDouble()));
    }
    if (!is_computed) compute(0, grad_out);
    results[0] = made.gate;
    results[1] = made.up;
    if (trains_weight) results[2] = product_gradient(2, grad_out, made.product);
    if (trains_a) results[3] = product_gradient(3, grad_hidden, made.product);
    if (a.defined() && context->needs_input_grad(4)) results[4] = product_gradient(4, grad_out, hidden);
    return results;
  }

 private:
  static detail::LowRankTerms term_of(const at::Tensor& a, const at::Tensor& b, double scale) {
    return {.a = {a}, .b = {b}, .scales = {scale}, .outputs = {0}};
  }

  // grad^T x, the gradient of an input.
  static at::Tensor product_gradient(std::size_t input, const at::Tensor& grad, const at::Tensor& x) {
    const std::array reads = {grad, x};
    return make_gradient(input, reads, [](auto tensors, const auto& place) {
      return detail::linears_weight_gradients(tensors.first(1), tensors[1], {place}).front();
    });
  }
};

}  // namespace

at::Tensor silu_mul_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                           const std::vector<LowRankTerm>& terms, const RowExchangePtr& output) {
  const bool trains_both = c10::GradMode::is_enabled() && gate.requires_grad() && up.requires_grad();
  const LowRankTerm term = terms.size() == 1 ? terms.front() : LowRankTerm{};
  if (trains_both && terms.size() <= 1 && detail::fits_silu_mul_linear_kernel(gate, up, weight, term.a) &&
      detail::pays_silu_mul_linear_kernel(gate.numel() / gate.size(-1), gate.size(-1))) {
    check_terms(terms, gate, {weight});
    const auto given = [&](const at::Tensor& factor) {
      return terms.empty() ? std::nullopt : std::optional<at::Tensor>(factor);
    };
    return SiluMulLinear::apply(gate, up, weight, given(term.a), given(term.b), term.scale, output);
  }
  return linears(silu_mul(gate, up), {weight}, /*biases=*/{}, terms, {.output = output}).front();
}

}  // namespace d9d::kernels
