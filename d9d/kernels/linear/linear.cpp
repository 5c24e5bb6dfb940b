#include "d9d/kernels/linear/linear.h"

#include <algorithm>
#include <iterator>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/linear/linear_gemms.h"
#include "d9d/kernels/linear/low_rank_gemms.h"
#include "d9d/kernels/linear/saved_exchange.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& tensor) {
  const at::IntArrayRef sizes = tensor.sizes();
  return tensor.reshape({c10::multiply_integers(sizes.begin(), sizes.end() - 1), sizes.back()});
}

// The gradient as a matrix with contiguous columns within a row. Rows may have any stride; otherwise it is copied.
at::Tensor gradient_matrix(const at::Tensor& grad) {
  const at::Tensor matrix = as_matrix(grad);
  return matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1) ? matrix : matrix.contiguous();
}

// Computes the gradients of the inputs from position `first` on, one for each gradient of an output, and puts them into
// `results`. `product` gets these gradients and then `others`.
template <class Product>
void put_gradients(AutogradContext* context, std::size_t first, const variable_list& grads, const variable_list& others,
                   const Product& product, variable_list& results) {
  std::vector<std::size_t> wanted;
  variable_list reads;
  reads.reserve(grads.size() + others.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined() || !context->needs_input_grad(first + i)) continue;
    wanted.push_back(first + i);
    reads.push_back(grads[i]);
  }
  if (wanted.empty()) return;
  std::ranges::copy(others, std::back_inserter(reads));
  variable_list gradients = make_gradients(wanted, reads, product);
  for (std::size_t i = 0; i < wanted.size(); ++i) results[wanted[i]] = std::move(gradients[i]);
}

const auto kWeightGradients = [](auto tensors, const GradientPlaces& places) {
  return detail::linears_weight_gradients(tensors.first(tensors.size() - 1), tensors.back(), places);
};

// Rows [first, first + count) of each matrix; undefined ones stay so.
variable_list rows_of(const variable_list& matrices, std::int64_t first, std::int64_t count) {
  variable_list rows;
  for (const at::Tensor& matrix : matrices) {
    rows.push_back(matrix.defined() ? matrix.narrow(0, first, count) : at::Tensor());
  }
  return rows;
}

const char* const kInputEdge = "input_edge";
const char* const kOutputEdge = "output_edge";

// The summand of this rank, [..., out], whose sum over ranks is scattered.
at::Tensor scattered_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& hidden,
                             const detail::LowRankTerms& terms, const RowExchange& output) {
  const at::Tensor rows = as_matrix(x);
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const auto write = [&](std::int64_t first, const at::Tensor& out) {
    detail::write_linears({out}, rows.narrow(0, first, out.size(0)), {weight}, /*biases=*/{});
    if (hidden.defined()) detail::add_low_rank_terms(hidden.narrow(0, first, out.size(0)), terms, {out});
  };
  return output.scatter({shape, x.options()}, write, [] {});
}

// Inputs: x, weights, biases, the A and the B of terms.
struct Linears : torch::autograd::Function<Linears> {
  // Saves the whole x if a weight or an A needs a gradient, and the weights if x does. Of terms all matrices, and scale
  // * x A^T.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weight_list,
                               at::TensorList biases, at::TensorList all_a, at::TensorList all_b,
                               const std::vector<double>& scales, const std::vector<std::int64_t>& outputs_of_terms,
                               const RowEdges& edges) {
    const std::vector<at::Tensor> weights = weight_list.vec();
    context->set_materialize_grads(false);
    // Outputs may be slices of one buffer. Autograd need not track them as views, because they are not written in
    // place.
    const at::AutoDispatchBelowADInplaceOrView no_views;
    const detail::LowRankTerms terms{all_a.vec(), all_b.vec(), scales, outputs_of_terms};
    Products made = edges.input    ? gathered_products(x, weights, biases.vec(), *edges.input)
                    : edges.output ? Products{.x = x, .outputs = {}}
                                   : Products{.x = x,
                                              .outputs = detail::linears_forward(as_matrix(x), weights, biases.vec(),
                                                                                 /*joins=*/x.is_cuda())};
    const at::Tensor rows = as_matrix(made.x);
    const at::Tensor hidden = all_a.empty() ? at::Tensor() : detail::low_rank_hidden(rows, terms);
    std::vector<std::int64_t> shape = made.x.sizes().vec();
    if (edges.output) {
      made.outputs = {scattered_product(x, weights.front(), hidden, terms, *edges.output)};
    } else {
      if (hidden.defined()) detail::add_low_rank_terms(hidden, terms, made.outputs);
      for (at::Tensor& output : made.outputs) {
        shape.back() = output.size(1);
        output = output.view(shape);
      }
    }
    save(context, x, made.x, weights, biases, terms, hidden);
    detail::save_exchange(context, kInputEdge, edges.input);
    detail::save_exchange(context, kOutputEdge, edges.output);
    return made.outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("linear");
    const bool has_biases = context->saved_data.count("has_biases") > 0;
    const variable_list saved = context->get_saved_variables();
    const std::size_t first_of_terms = 1 + (has_biases ? 2 : 1) * grads.size();
    const detail::LowRankTerms terms = saved_terms(context, saved, 2 + grads.size());
    variable_list results(first_of_terms + 2 * terms.a.size() + 3);
    const auto any = std::ranges::find_if(grads, [](const at::Tensor& grad) { return grad.defined(); });
    if (any == grads.end()) return results;
    const auto first = saved.begin() + 1;
    const std::vector<at::Tensor> weights(first, first + static_cast<std::ptrdiff_t>(grads.size()));
    const bool trains_input = context->needs_input_grad(0);

    at::Tensor of_x;
    if (const RowExchangePtr output = detail::saved_exchange(context, kOutputEdge)) {
      grads[0] = output->gather(grads[0], [&](std::int64_t begin, const at::Tensor& rows) {
        if (!trains_input) return;
        if (!of_x.defined()) {
          const std::int64_t num_rows = grads[0].numel() / grads[0].size(-1) * output->num_ranks();
          of_x = at::empty({num_rows, weights.front().size(1)}, rows.options());
        }
        detail::write_linears_input_gradient(of_x.narrow(0, begin, rows.size(0)), {rows}, weights);
      });
    }
    std::vector<std::int64_t> shape = any->sizes().vec();
    for (at::Tensor& grad : grads) {
      if (grad.defined()) grad = gradient_matrix(grad);
    }
    const at::Tensor of_hidden = terms.a.empty() ? at::Tensor() : detail::low_rank_hidden_gradient(grads, terms);
    const auto put_all = [&] {
      put_gradients_of_parameters(context, grads, saved, of_hidden, terms, has_biases, first_of_terms, results);
    };
    if (!trains_input) {
      put_all();
      return results;
    }
    shape.back() = weights.front().size(1);
    if (const RowExchangePtr input = detail::saved_exchange(context, kInputEdge)) {
      results[0] = input->scatter(
          {shape, any->options()},
          [&](std::int64_t begin, const at::Tensor& out) {
            detail::write_linears_input_gradient(out, rows_of(grads, begin, out.size(0)), weights);
            if (!of_hidden.defined()) return;
            detail::add_low_rank_input_gradient(of_hidden.narrow(0, begin, out.size(0)), terms, out);
          },
          put_all);
      return results;
    }
    if (!of_x.defined()) of_x = detail::linears_input_gradient(grads, weights);
    if (of_hidden.defined()) detail::add_low_rank_input_gradient(of_hidden, terms, of_x);
    results[0] = of_x.view(shape);
    put_all();
    return results;
  }

 private:
  struct Products {
    at::Tensor x;  // whole
    variable_list outputs;
  };

  // The products of each block of rows, when it has arrived.
  static Products gathered_products(const at::Tensor& shard, const std::vector<at::Tensor>& weights,
                                    const std::vector<at::Tensor>& biases, const RowExchange& input) {
    const std::int64_t num_rows = shard.numel() / shard.size(-1) * input.num_ranks();
    Products made{.x = {}, .outputs = detail::empty_linears_outputs(num_rows, weights, /*joins=*/shard.is_cuda())};
    made.x = input.gather(shard, [&](std::int64_t first, const at::Tensor& rows) {
      detail::write_linears(rows_of(made.outputs, first, rows.size(0)), rows, weights, biases);
    });
    return made;
  }

  static void save(AutogradContext* context, const at::Tensor& x, const at::Tensor& whole,
                   const std::vector<at::Tensor>& weights, at::TensorList biases, const detail::LowRankTerms& terms,
                   const at::Tensor& hidden) {
    const auto trains = [](at::TensorList tensors) {
      return std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
    };
    variable_list saved(1 + weights.size());
    if (trains(weights) || trains(terms.a)) saved[0] = whole;
    if (x.requires_grad()) std::ranges::copy(weights, saved.begin() + 1);
    if (!biases.empty()) context->saved_data["has_biases"] = true;
    if (!terms.a.empty()) {
      saved.push_back(trains(terms.b) ? hidden : at::Tensor());
      saved.insert(saved.end(), terms.a.begin(), terms.a.end());
      saved.insert(saved.end(), terms.b.begin(), terms.b.end());
      context->saved_data["scales"] = terms.scales;
      context->saved_data["outputs"] = terms.outputs;
    }
    context->save_for_backward(std::move(saved));
  }

  // first: the position of the first A among the saved tensors.
  static detail::LowRankTerms saved_terms(AutogradContext* context, const variable_list& saved, std::size_t first) {
    if (saved.size() < first) return {};
    const auto begin = saved.begin() + static_cast<std::ptrdiff_t>(first);
    const auto middle = begin + (saved.end() - begin) / 2;
    return {{begin, middle},
            {middle, saved.end()},
            context->saved_data["scales"].toDoubleVector(),
            context->saved_data["outputs"].toIntVector()};
  }

  // Those of weights, biases and terms. first_of_terms: the position of the first A among the inputs.
  static void put_gradients_of_parameters(AutogradContext* context, const variable_list& grads,
                                          const variable_list& saved, const at::Tensor& of_hidden,
                                          const detail::LowRankTerms& terms, bool has_biases,
                                          std::size_t first_of_terms, variable_list& results) {
    if (saved[0].defined()) put_gradients(context, 1, grads, {as_matrix(saved[0])}, kWeightGradients, results);
    const auto of_biases = [](auto tensors, const GradientPlaces& places) {
      return detail::linears_bias_gradients(tensors, places);
    };
    if (has_biases) put_gradients(context, 1 + grads.size(), grads, {}, of_biases, results);
    if (!of_hidden.defined()) return;
    put_gradients_of_terms(context, first_of_terms, grads, saved, of_hidden, terms, results);
  }

  // first: the position of the first A among the inputs.
  static void put_gradients_of_terms(AutogradContext* context, std::size_t first, const variable_list& grads,
                                     const variable_list& saved, const at::Tensor& of_hidden,
                                     const detail::LowRankTerms& terms, variable_list& results) {
    const std::size_t num_terms = terms.a.size();
    if (saved[0].defined()) {
      put_gradients(context, first, terms.columns_of(of_hidden), {as_matrix(saved[0])}, kWeightGradients, results);
    }
    const at::Tensor& all_hidden = saved[1 + grads.size()];
    if (!all_hidden.defined()) return;
    const std::vector<at::Tensor> hidden = terms.columns_of(all_hidden);
    for (std::size_t i = 0; i < num_terms; ++i) {
      const at::Tensor& grad = grads[static_cast<std::size_t>(terms.outputs[i])];
      put_gradients(context, first + num_terms + i, {grad}, {hidden[i]}, kWeightGradients, results);
    }
  }
};

void check_matrix(const char* what, const at::Tensor& matrix, std::int64_t rows, std::int64_t columns,
                  const at::Tensor& x) {
  D9D_CHECK(matrix.dim() == 2 && matrix.size(0) == rows && matrix.size(1) == columns &&
                matrix.scalar_type() == x.scalar_type() && matrix.device() == x.device(),
            ConfigError, "[kernels::linear] expected ", what, " of a term of low rank [", rows, ", ", columns, "] ",
            x.scalar_type(), " on ", x.device(), ", got ", matrix.sizes(), " ", matrix.scalar_type(), " on ",
            matrix.device(), ".");
}

}  // namespace

void check_terms(const std::vector<LowRankTerm>& terms, const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  for (const LowRankTerm& term : terms) {
    D9D_CHECK(term.output < weights.size() && term.a.dim() == 2, ConfigError,
              "[kernels::linear] expected a term of low rank of one of ", weights.size(),
              " outputs and A [r, in], got output ", term.output, " and A ", term.a.sizes(), ".");
    check_matrix("A", term.a, term.a.size(0), x.size(-1), x);
    check_matrix("B", term.b, weights[term.output].size(0), term.a.size(0), x);
  }
}

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const std::vector<at::Tensor>& biases, const std::vector<LowRankTerm>& terms,
                                const RowEdges& edges) {
  D9D_ASSERT(!edges.output || (weights.size() == 1 && biases.empty() && !edges.input),
             "[kernels::linear] one weight without a bias before an exchange of its output");
  for (const at::Tensor& weight : weights) {
    D9D_CHECK(x.dim() >= 1 && weight.dim() == 2 && weight.size(1) == x.size(-1) &&
                  weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
              ConfigError,
              "[kernels::linear] expected x [..., in] and a weight [out, in] of one dtype and device, got ", x.sizes(),
              " ", x.scalar_type(), " on ", x.device(), " and ", weight.sizes(), " ", weight.scalar_type(), " on ",
              weight.device(), ". Make them agree.");
  }
  D9D_CHECK(biases.empty() || biases.size() == weights.size(), ConfigError,
            "[kernels::linear] expected a bias for each of ", weights.size(), " weights or none, got ", biases.size(),
            ".");
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const at::Tensor& bias = biases[i];
    D9D_CHECK(bias.dim() == 1 && bias.size(0) == weights[i].size(0) && bias.scalar_type() == x.scalar_type() &&
                  bias.device() == x.device(),
              ConfigError, "[kernels::linear] expected a bias [", weights[i].size(0), "] ", x.scalar_type(), " on ",
              x.device(), ", got ", bias.sizes(), " ", bias.scalar_type(), " on ", bias.device(), ".");
  }
  check_terms(terms, x, weights);
  detail::LowRankTerms split;
  for (const LowRankTerm& term : terms) {
    split.a.push_back(term.a);
    split.b.push_back(term.b);
    split.scales.push_back(term.scale);
    split.outputs.push_back(static_cast<std::int64_t>(term.output));
  }
  return Linears::apply(x, at::TensorList(weights), at::TensorList(biases), at::TensorList(split.a),
                        at::TensorList(split.b), split.scales, split.outputs, edges);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) { return linears(x, {weight}).front(); }

}  // namespace d9d::kernels
