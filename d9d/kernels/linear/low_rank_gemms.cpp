#include "d9d/kernels/linear/low_rank_gemms.h"

#include <ATen/ATen.h>

#include "d9d/kernels/linear/gemm.h"

namespace d9d::kernels::detail {
namespace {

at::Tensor all_a(const LowRankTerms& terms) { return terms.a.size() == 1 ? terms.a.front() : at::cat(terms.a); }

void scale_columns(const at::Tensor& whole, const LowRankTerms& terms) {
  const std::vector<at::Tensor> columns = terms.columns_of(whole);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (terms.scales[i] != 1.0) columns[i].mul_(terms.scales[i]);
  }
}

}  // namespace

std::vector<at::Tensor> LowRankTerms::columns_of(const at::Tensor& whole) const {
  std::vector<at::Tensor> columns;
  std::int64_t first = 0;
  for (const at::Tensor& each : a) {
    columns.push_back(whole.narrow(1, first, each.size(0)));
    first += each.size(0);
  }
  return columns;
}

at::Tensor low_rank_hidden(const at::Tensor& x, const LowRankTerms& terms) {
  at::Tensor hidden = rows_product(x, all_a(terms));
  scale_columns(hidden, terms);
  return hidden;
}

void add_low_rank_terms(const at::Tensor& hidden, const LowRankTerms& terms, const std::vector<at::Tensor>& outputs) {
  const std::vector<at::Tensor> columns = terms.columns_of(hidden);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    accumulate(outputs[static_cast<std::size_t>(terms.outputs[i])], columns[i], terms.b[i].t());
  }
}

at::Tensor low_rank_hidden_gradient(const std::vector<at::Tensor>& grads, const LowRankTerms& terms) {
  std::int64_t ranks = 0;
  for (const at::Tensor& a : terms.a) ranks += a.size(0);
  const at::Tensor* rows = nullptr;
  for (const at::Tensor& grad : grads) {
    if (grad.defined()) rows = &grad;
  }
  at::Tensor whole = at::empty({rows->size(0), ranks}, rows->options());
  const std::vector<at::Tensor> columns = terms.columns_of(whole);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const at::Tensor& grad = grads[static_cast<std::size_t>(terms.outputs[i])];
    grad.defined() ? multiply(columns[i], grad, terms.b[i]) : void(columns[i].zero_());
  }
  scale_columns(whole, terms);
  return whole;
}

void add_low_rank_input_gradient(const at::Tensor& of_hidden, const LowRankTerms& terms, const at::Tensor& of_x) {
  accumulate(of_x, of_hidden, all_a(terms));
}

}  // namespace d9d::kernels::detail
