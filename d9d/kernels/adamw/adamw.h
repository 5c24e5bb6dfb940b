// One step of Adam (Kingma and Ba, arXiv:1412.6980), by default with decoupled weight decay (Loshchilov and Hutter,
// arXiv:1711.05101), for many tensors in one call.
//
// Example
//   adamw_({{.parameter = weight, .grad = grad, .exp_avg = m, .exp_avg_sq = v, .step = 1}},
//          {.learning_rate = 1e-3, .weight_decay = 0.1}, /*grad_scale=*/at::ones({}, at::kDouble));
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels {

// The random bits that round the elements of a parameter. In step s the parameter uses RandomStream{key, 3 s}, exp_avg
// {key, 3 s + 1} and exp_avg_sq {key, 3 s + 2}, as copy_fp32_to_bf16_stochastic_ does.
struct StochasticRounding {
  std::uint64_t key = 0;
  ElementRows rows = {};  // position of the parameter's elements in the whole parameter
};

// A parameter with its gradient and moments. All tensors have the parameter's shape and device.
struct AdamWTensors {
  at::Tensor parameter;       // float, double or half precision
  at::Tensor grad;            // any floating dtype
  at::Tensor exp_avg;         // fp32 (fp64 for fp64 parameters), or bfloat16 with rounding
  at::Tensor exp_avg_sq;      // as exp_avg
  at::Tensor max_exp_avg_sq;  // as exp_avg, undefined without amsgrad
  std::int64_t step = 1;      // the number of this parameter's update, counted from 1
  std::optional<StochasticRounding> rounding = std::nullopt;  // bfloat16 parameters only; unset: rounds to nearest
};

// Options that all tensors share.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decouples_decay = true;  // false: weight_decay times the parameter is added to the gradient
  bool maximize = false;
};

// Updates parameters and moments in place. Gradients are multiplied by grad_scale, which is 0-dim; if it is on a GPU,
// the call does not synchronise. If grad_scale is NaN, nothing changes. Computes in fp32, in double for double
// parameters, and rounds once. On Hopper one launch updates hundreds of tensors that agree in dtypes and step, and
// neither allocates nor copies to the device; amsgrad, strided tensors and other dtypes go through ATen. Throws
// ConfigError on shapes, devices and dtypes that do not fit.
void adamw_(const std::vector<AdamWTensors>& tensors, const AdamWOptions& options, const at::Tensor& grad_scale);

}  // namespace d9d::kernels
