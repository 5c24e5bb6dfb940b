#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/first_order.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_aten.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::int64_t vocabulary_size(at::TensorList weight) {
  std::int64_t size = 0;
  for (const at::Tensor& split : weight) size += split.size(0);
  return size;
}

void check_same_kind(const at::Tensor& hidden, const at::Tensor& other, const char* name) {
  D9D_CHECK(other.scalar_type() == hidden.scalar_type() && other.device() == hidden.device(), ConfigError,
            "[kernels::linear_cross_entropy] expected ", name, " in hidden's dtype and device, ", hidden.scalar_type(),
            " on ", hidden.device(), ", got ", other.scalar_type(), " on ", other.device(),
            ". Convert one of the two.");
}

void check_tensors(const at::Tensor& hidden, at::TensorList weight, const at::Tensor& targets) {
  D9D_CHECK(hidden.is_floating_point() && hidden.dim() >= 2 && targets.scalar_type() == at::kLong &&
                hidden.sizes().slice(0, hidden.dim() - 1) == targets.sizes() && targets.device() == hidden.device(),
            ConfigError,
            "[kernels::linear_cross_entropy] expected floating hidden [..., S, H] and int64 targets [..., S] on one "
            "device, got ",
            hidden.sizes(), " ", hidden.scalar_type(), " on ", hidden.device(), " and ", targets.sizes(), " ",
            targets.scalar_type(), " on ", targets.device(), ". Align the two.");
  for (const at::Tensor& split : weight) {
    D9D_CHECK(split.dim() == 2 && split.size(1) == hidden.size(-1), ConfigError,
              "[kernels::linear_cross_entropy] expected every weight [V, H] with H = ", hidden.size(-1), ", got ",
              split.sizes(), ". A weight is stored [outputs, inputs].");
    check_same_kind(hidden, split, "weight");
  }
  D9D_CHECK(vocabulary_size(weight) > 0, ConfigError,
            "[kernels::linear_cross_entropy] expected a vocabulary, got no rows of weight. Pass at least one.");
}

void check_options(const at::Tensor& hidden, at::TensorList weight, const at::Tensor& targets,
                   const LinearCrossEntropyOptions& options) {
  if (options.bias) {
    D9D_CHECK(options.bias->dim() == 1 && options.bias->size(0) == vocabulary_size(weight), ConfigError,
              "[kernels::linear_cross_entropy] expected bias [V] with V = ", vocabulary_size(weight), ", got ",
              options.bias->sizes(), ". One bias covers all weight splits.");
    check_same_kind(hidden, *options.bias, "bias");
  }
  D9D_CHECK(!options.softcap || *options.softcap > 0, ConfigError,
            "[kernels::linear_cross_entropy] expected softcap > 0, got ", *options.softcap,
            ". Leave it unset for none.");
  D9D_CHECK(options.shift == 0 || (options.shift > 0 && options.shift < targets.size(-1)), ConfigError,
            "[kernels::linear_cross_entropy] expected 0 <= shift < S = ", targets.size(-1), ", got ", options.shift,
            ". Pass labels that are aligned already, or a smaller shift.");
  D9D_CHECK(options.z_loss_weight >= 0 && options.chunk_size.value_or(1) > 0, ConfigError,
            "[kernels::linear_cross_entropy] expected z_loss_weight >= 0 and chunk_size > 0, got ",
            options.z_loss_weight, " and ", options.chunk_size.value_or(1), ". Use the defaults.");
}

// targets[..., s + shift] at s, ignored where there is none.
at::Tensor shifted(const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  if (options.shift == 0) return targets;
  const std::int64_t length = targets.size(-1);
  return at::constant_pad_nd(targets.narrow(-1, options.shift, length - options.shift), {0, options.shift},
                             options.ignore_index);
}

// Moves what belongs to hidden state s to its target, s + shift.
at::Tensor unshifted(const at::Tensor& rows, std::int64_t shift) {
  if (shift == 0) return rows;
  return at::constant_pad_nd(rows.narrow(-1, 0, rows.size(-1) - shift), {shift, 0}, 0);
}

// Ignored rows become kIgnored, targets outside the vocabulary an error, or `size` where looking would wait.
at::Tensor checked_targets(const at::Tensor& targets, std::int64_t ignore_index, std::int64_t size) {
  const at::Tensor is_ignored = targets.eq(ignore_index);
  const at::Tensor is_outside = targets.lt(0).logical_or_(targets.ge(size)).logical_and_(is_ignored.logical_not());
  if (targets.is_cpu() && is_outside.any().item<bool>()) {
    const std::int64_t id = targets.masked_select(is_outside)[0].item<std::int64_t>();
    throw ConfigError(cat("[kernels::linear_cross_entropy] expected targets in the vocabulary of ", size,
                          " or ignore_index = ", ignore_index, ", got ", id,
                          ". Check the tokenizer against the head's vocabulary."));
  }
  return targets.masked_fill(is_outside, size).masked_fill(is_ignored, detail::kIgnored);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::TensorList& weights,
                               const std::optional<at::Tensor>& bias, const at::Tensor& targets,
                               std::optional<double> softcap, double z_loss_weight, std::int64_t chunk_size) {
    const detail::LinearCrossEntropyInput input{.hidden = hidden,
                                                .weights = weights.vec(),
                                                .bias = bias.value_or(at::Tensor()),
                                                .targets = targets,
                                                .softcap = softcap,
                                                .z_loss_weight = z_loss_weight,
                                                .chunk_size = chunk_size};
    const auto [loss, lse] = detail::linear_cross_entropy_forward_aten(input);
    variable_list saved = {hidden, input.bias, targets, lse};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["softcap"] = softcap;
    context->saved_data["z_loss_weight"] = z_loss_weight;
    context->saved_data["chunk_size"] = chunk_size;
    context->set_materialize_grads(false);
    return {loss, lse};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("linear_cross_entropy");
    const variable_list saved = context->get_saved_variables();
    const detail::LinearCrossEntropyInput input{.hidden = saved[0],
                                                .weights = {saved.begin() + 4, saved.end()},
                                                .bias = saved[1],
                                                .targets = saved[2],
                                                .softcap = context->saved_data["softcap"].toOptional<double>(),
                                                .z_loss_weight = context->saved_data["z_loss_weight"].toDouble(),
                                                .chunk_size = context->saved_data["chunk_size"].toInt()};
    const std::size_t num_weights = input.weights.size();
    detail::LinearCrossEntropyWanted wanted{.hidden = context->needs_input_grad(0)};
    for (std::size_t split = 0; split < num_weights; ++split)
      wanted.weights.push_back(context->needs_input_grad(1 + split));
    wanted.bias = input.bias.defined() && context->needs_input_grad(1 + num_weights);
    variable_list result(num_weights + 6);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    auto backward = detail::linear_cross_entropy_backward_aten(input, saved[3], grads[0], grads[1], wanted);
    result[0] = std::move(backward.hidden);
    std::move(backward.weights.begin(), backward.weights.end(), result.begin() + 1);
    result[1 + num_weights] = std::move(backward.bias);
    return result;
  }
};

at::Tensor reduced(const at::Tensor& loss, const at::Tensor& targets, Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return loss;
    case Reduction::kSum:
      return loss.sum();
    case Reduction::kMean:
      return loss.sum() / targets.ne(detail::kIgnored).sum().clamp_min(1);
  }
  D9D_ASSERT(false, "unknown reduction");
}

}  // namespace

LinearCrossEntropyOutput linear_cross_entropy(const at::Tensor& hidden, at::TensorList weight,
                                              const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  check_tensors(hidden, weight, targets);
  check_options(hidden, weight, targets, options);
  const at::Tensor row_targets =
      checked_targets(shifted(targets, options), options.ignore_index, vocabulary_size(weight));
  const variable_list rows =
      LinearCrossEntropy::apply(hidden.reshape({targets.numel(), hidden.size(-1)}), weight, options.bias,
                                row_targets.reshape(-1), options.softcap, options.z_loss_weight,
                                options.chunk_size.value_or(std::int64_t{1} << (hidden.is_cpu() ? 20 : 26)));
  const at::Tensor loss = unshifted(rows[0].view(targets.sizes()), options.shift);
  return {.loss = reduced(loss, row_targets, options.reduction),
          .lse = unshifted(rows[1].view(targets.sizes()), options.shift)};
}

}  // namespace d9d::kernels
