#include "d9d/kernels/linear/linear_gemms.h"

#include <ATen/ATen.h>

#include "d9d/kernels/linear/adjacent_matrices.h"
#include "d9d/kernels/linear/gemm.h"

namespace d9d::kernels::detail {
namespace {

template <class T>
std::span<const T> part(const std::vector<T>& all, Run run) {
  return std::span(all).subspan(run.first, run.count);
}

at::Tensor joined_biases(std::span<const at::Tensor> biases) {
  return biases.size() == 1 ? biases.front() : at::cat(at::TensorList(biases.data(), biases.size()));
}

void put_product(const GradientPlace& place, const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType dtype = place.tensor.scalar_type();
  const bool is_written_by_products =
      dtype == a.scalar_type() || (a.is_cuda() && dtype == at::kFloat && a.element_size() == 2);
  if (!is_written_by_products) return place.put(at::mm(a, b));
  place.has_values ? accumulate(place.tensor, a, b) : multiply(place.tensor, a, b);
}

}  // namespace

std::vector<at::Tensor> linears_forward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                        const std::vector<at::Tensor>& biases, bool joins) {
  std::vector<at::Tensor> outputs;
  const auto joined = [&](std::size_t i) { return joins && follows_in_rows(weights[i], weights[i + 1]); };
  for (const Run run : runs(weights.size(), joined)) {
    const at::Tensor weight = joined_rows(part(weights, run));
    const at::Tensor whole =
        biases.empty() ? rows_product(x, weight) : at::addmm(joined_biases(part(biases, run)), x, weight.t());
    std::int64_t column = 0;
    for (const at::Tensor& each : part(weights, run)) {
      outputs.push_back(run.count == 1 ? whole : whole.narrow(1, column, each.size(0)));
      column += each.size(0);
    }
  }
  return outputs;
}

std::vector<at::Tensor> empty_linears_outputs(std::int64_t num_rows, const std::vector<at::Tensor>& weights,
                                              bool joins) {
  std::vector<at::Tensor> outputs;
  const auto joined = [&](std::size_t i) { return joins && follows_in_rows(weights[i], weights[i + 1]); };
  for (const Run run : runs(weights.size(), joined)) {
    const std::int64_t num_columns = joined_rows(part(weights, run)).size(0);
    const at::Tensor whole = at::empty({num_rows, num_columns}, weights.front().options());
    std::int64_t column = 0;
    for (const at::Tensor& each : part(weights, run)) {
      outputs.push_back(whole.narrow(1, column, each.size(0)));
      column += each.size(0);
    }
  }
  return outputs;
}

void write_linears(const std::vector<at::Tensor>& outputs, const at::Tensor& x, const std::vector<at::Tensor>& weights,
                   const std::vector<at::Tensor>& biases) {
  const auto joined = [&](std::size_t i) {
    return follows_in_rows(weights[i], weights[i + 1]) && follows_in_columns(outputs[i], outputs[i + 1]);
  };
  for (const Run run : runs(weights.size(), joined)) {
    at::Tensor out = joined_columns(part(outputs, run));
    const at::Tensor weight = joined_rows(part(weights, run));
    if (biases.empty()) {
      write_rows_product(out, x, weight);
    } else {
      at::addmm_out(out, joined_biases(part(biases, run)), x, weight.t());
    }
  }
}

namespace {

// Written to `out`, or to a new tensor if that is undefined.
at::Tensor summed_input_gradient(const std::vector<at::Tensor>& grads, const std::vector<at::Tensor>& weights,
                                 const at::Tensor& out) {
  at::Tensor sum;
  const auto joined = [&](std::size_t i) {
    return grads[i].defined() && grads[i + 1].defined() && follows_in_columns(grads[i], grads[i + 1]) &&
           follows_in_rows(weights[i], weights[i + 1]);
  };
  for (const Run run : runs(grads.size(), joined)) {
    if (!grads[run.first].defined()) continue;
    const at::Tensor grad = joined_columns(part(grads, run));
    const at::Tensor weight = joined_rows(part(weights, run));
    if (sum.defined()) {
      sum.addmm_(grad, weight);
    } else if (out.defined()) {
      sum = out;
      at::mm_out(sum, grad, weight);
    } else {
      sum = at::mm(grad, weight);
    }
  }
  return sum;
}

}  // namespace

at::Tensor linears_input_gradient(const std::vector<at::Tensor>& grads, const std::vector<at::Tensor>& weights) {
  return summed_input_gradient(grads, weights, /*out=*/{});
}

void write_linears_input_gradient(const at::Tensor& out, const std::vector<at::Tensor>& grads,
                                  const std::vector<at::Tensor>& weights) {
  (void)summed_input_gradient(grads, weights, out);
}

std::vector<at::Tensor> linears_weight_gradients(std::span<const at::Tensor> grads, const at::Tensor& x,
                                                 const GradientPlaces& places) {
  std::vector<at::Tensor> results(grads.size());
  const auto joined = [&](std::size_t i) {
    if (!follows_in_columns(grads[i], grads[i + 1]) || places[i].has_value() != places[i + 1].has_value()) return false;
    return !places[i] || (places[i]->has_values == places[i + 1]->has_values &&
                          follows_in_rows(places[i]->tensor, places[i + 1]->tensor));
  };
  for (const Run run : runs(grads.size(), joined)) {
    const at::Tensor grad = joined_columns(grads.subspan(run.first, run.count)).t();
    if (!places[run.first]) {
      const at::Tensor whole = at::mm(grad, x);
      std::int64_t row = 0;
      for (std::size_t i = run.first; i < run.first + run.count; ++i) {
        results[i] = run.count == 1 ? whole : whole.narrow(0, row, grads[i].size(1));
        row += grads[i].size(1);
      }
      continue;
    }
    std::vector<at::Tensor> tensors;
    for (const auto& place : part(places, run)) tensors.push_back(place->tensor);
    put_product({.tensor = joined_rows(tensors), .has_values = places[run.first]->has_values}, grad, x);
  }
  return results;
}

std::vector<at::Tensor> linears_bias_gradients(std::span<const at::Tensor> grads, const GradientPlaces& places) {
  std::vector<at::Tensor> results(grads.size());
  const auto joined = [&](std::size_t i) { return follows_in_columns(grads[i], grads[i + 1]); };
  for (const Run run : runs(grads.size(), joined)) {
    const auto& place = places[run.first];
    // On a GPU wider places get sums that are not rounded, as they get products; on a CPU they get LibTorch's.
    const at::ScalarType dtype = (place && grads[run.first].is_cuda() ? place->tensor : grads[run.first]).scalar_type();
    const at::Tensor sums = joined_columns(grads.subspan(run.first, run.count)).sum(0, /*keepdim=*/false, dtype);
    std::int64_t first = 0;
    for (std::size_t i = run.first; i < run.first + run.count; ++i) {
      const at::Tensor sum = sums.narrow(0, first, grads[i].size(1));
      first += grads[i].size(1);
      places[i] ? places[i]->put(sum) : void(results[i] = sum.to(grads[i].scalar_type()));
    }
  }
  return results;
}

}  // namespace d9d::kernels::detail
