#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <iterator>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"

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

void check_low_rank(const at::Tensor& hidden, at::TensorList weight, const LowRankLogits& term) {
  D9D_CHECK(term.hidden.dim() == hidden.dim() &&
                term.hidden.sizes().slice(0, term.hidden.dim() - 1) == hidden.sizes().slice(0, hidden.dim() - 1),
            ConfigError, "[kernels::linear_cross_entropy] expected low_rank.hidden [..., S, r] beside hidden ",
            hidden.sizes(), ", got ", term.hidden.sizes(), ". Align the two.");
  check_same_kind(hidden, term.hidden, "low_rank.hidden");
  D9D_CHECK(term.weights.size() == weight.size(), ConfigError,
            "[kernels::linear_cross_entropy] expected a low_rank.weights for each of ", weight.size(), " weights, got ",
            term.weights.size(), ". Pass one a split of the vocabulary.");
  for (std::size_t split = 0; split < weight.size(); ++split) {
    const at::Tensor& narrow = term.weights[split];
    D9D_CHECK(narrow.dim() == 2 && narrow.size(0) == weight[split].size(0) && narrow.size(1) == term.hidden.size(-1),
              ConfigError, "[kernels::linear_cross_entropy] expected low_rank.weights of ", weight[split].size(0),
              " rows and r = ", term.hidden.size(-1), " columns, got ", narrow.sizes(),
              ". They are cut as the weights are.");
    check_same_kind(hidden, narrow, "low_rank.weights");
  }
}

void check_options(const at::Tensor& hidden, at::TensorList weight, const at::Tensor& targets,
                   const LinearCrossEntropyOptions& options) {
  if (options.bias) {
    D9D_CHECK(options.bias->dim() == 1 && options.bias->size(0) == vocabulary_size(weight), ConfigError,
              "[kernels::linear_cross_entropy] expected bias [V] with V = ", vocabulary_size(weight), ", got ",
              options.bias->sizes(), ". One bias covers all weight splits.");
    check_same_kind(hidden, *options.bias, "bias");
  }
  if (options.low_rank) check_low_rank(hidden, weight, *options.low_rank);
  D9D_CHECK(!options.softcap || *options.softcap > 0, ConfigError,
            "[kernels::linear_cross_entropy] expected softcap > 0, got ", *options.softcap,
            ". Leave it unset for none.");
  D9D_CHECK(options.shift == 0 || (options.shift > 0 && options.shift < targets.size(-1)), ConfigError,
            "[kernels::linear_cross_entropy] expected 0 <= shift < S = ", targets.size(-1), ", got ", options.shift,
            ". Pass labels that are aligned already, or a smaller shift.");
  D9D_CHECK(options.z_loss_weight >= 0 && options.chunk_size.value_or(1) > 0, ConfigError,
            "[kernels::linear_cross_entropy] expected z_loss_weight >= 0 and chunk_size > 0, got ",
            options.z_loss_weight, " and ", options.chunk_size.value_or(1), ". Use the defaults.");
  D9D_CHECK(!options.filter_eps || *options.filter_eps > 0, ConfigError,
            "[kernels::linear_cross_entropy] expected filter_eps > 0, got ", *options.filter_eps,
            ". Leave it unset for no filter.");
  if (options.shard) {
    D9D_CHECK(options.shard->gather && options.shard->most_rows >= vocabulary_size(weight), ConfigError,
              "[kernels::linear_cross_entropy] expected shard.gather, and shard.most_rows of at least this rank's ",
              vocabulary_size(weight), " rows of weight, got ",
              options.shard->gather ? cat(options.shard->most_rows) : "no function",
              ". Pass the rows of the rank that has most.");
  }
}

// The target of hidden state s, which is targets[..., s + shift]; ignored if there is none.
at::Tensor shifted(const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  if (options.shift == 0) return targets;
  const std::int64_t length = targets.size(-1);
  return at::constant_pad_nd(targets.narrow(-1, options.shift, length - options.shift), {0, options.shift},
                             options.ignore_index);
}

// Moves the result of hidden state s to the position of its target, s + shift, and fills the first `shift` with zeros.
at::Tensor unshifted(const at::Tensor& rows, std::int64_t shift) {
  if (shift == 0) return rows;
  return at::constant_pad_nd(rows.narrow(-1, 0, rows.size(-1) - shift), {shift, 0}, 0);
}

// Replaces ignored targets by kIgnored and those outside the vocabulary by `size`. Unless they may be on other ranks,
// the latter throw ConfigError on a CPU; on other devices a check would have to synchronise.
at::Tensor checked_targets(const at::Tensor& targets, const LinearCrossEntropyOptions& options, std::int64_t size) {
  const std::int64_t ignore_index = options.ignore_index;
  if (detail::has_cuda_kernels(targets.device())) return detail::checked_targets_cuda(targets, ignore_index, size);
  if (targets.is_meta()) return at::empty_like(targets);
  const at::Tensor is_ignored = targets.eq(ignore_index);
  const at::Tensor is_outside = targets.lt(0).logical_or_(targets.ge(size)).logical_and_(is_ignored.logical_not());
  if (targets.is_cpu() && !options.shard && is_outside.any().item<bool>()) {
    const std::int64_t id = targets.masked_select(is_outside)[0].item<std::int64_t>();
    throw ConfigError(cat("[kernels::linear_cross_entropy] expected targets in the vocabulary of ", size,
                          " or ignore_index = ", ignore_index, ", got ", id,
                          ". Check the tokenizer against the head's vocabulary."));
  }
  return targets.masked_fill(is_outside, size).masked_fill(is_ignored, detail::kIgnored);
}

// Only for bf16 on a GPU: fp16 would lose small gradients before a loss scale is applied to them. Tensors without
// values stand for those of a GPU.
bool makes_gradients_in_forward(const at::Tensor& hidden, const LinearCrossEntropyOptions& options) {
  return options.gradients_in_forward && hidden.numel() > 0 && hidden.scalar_type() == at::kBFloat16 &&
         (detail::has_cuda_kernels(hidden) || hidden.is_meta());
}

detail::GradientFilter filter_of(const LinearCrossEntropyOptions& options) {
  if (!options.filter_eps || !(options.filter_e_grad || options.filter_c_grad)) return {};
  return {.eps = *options.filter_eps, .of_hidden = options.filter_e_grad, .of_weights = options.filter_c_grad};
}

constexpr std::int64_t kChunkWithGradients = std::int64_t{19} << 24;
std::int64_t chunk_of_logits(const at::Tensor& hidden) { return std::int64_t{1} << (hidden.is_cpu() ? 20 : 26); }

// Whether all rows have the same gradient of the loss, and lse has none. Then the gradients are those of the sum of the
// losses, times one number.
bool is_multiple_of_sum(const variable_list& grads) {
  return grads[0].defined() && !grads[1].defined() && (grads[0].numel() <= 1 || grads[0].stride(0) == 0);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static constexpr const char* kGradients = "gradients";  // of factors and bias; undefined if not computed

  // factors: for each product its hidden and its num_weights weights. wanted: for each of them and the bias, whether
  // forward computes its gradient; empty if it computes none.
  static variable_list forward(AutogradContext* context, const at::TensorList& factors, std::int64_t num_weights,
                               const std::optional<at::Tensor>& bias, const at::Tensor& targets,
                               std::optional<double> softcap, double z_loss_weight,
                               std::optional<std::int64_t> chunk_size, const detail::GradientFilter& filter,
                               const std::optional<VocabularyShard>& shard, const std::vector<bool>& wanted) {
    const at::Tensor& hidden = factors.front();
    detail::LinearCrossEntropyInput input{.products = products_of(factors, num_weights),
                                          .bias = bias.value_or(at::Tensor()),
                                          .targets = targets,
                                          .softcap = softcap,
                                          .z_loss_weight = z_loss_weight,
                                          .chunk_size = chunk_size.value_or(chunk_of_logits(hidden)),
                                          .filter = filter,
                                          .shard = shard};
    detail::LinearCrossEntropyForward output;
    context->saved_data["chunk_size"] = input.chunk_size;
    if (!wanted.empty()) {
      input.chunk_size = chunk_size.value_or(kChunkWithGradients);
      auto result = detail::linear_cross_entropy_with_gradients_cuda(input, by_name(wanted, num_weights),
                                                                     detail::chunks_with_gradients(input));
      output = std::move(result.forward);
      context->saved_data[kGradients] = in_order(std::move(result.backward));
    } else {
      output = detail::has_cuda_kernels(hidden) ? detail::linear_cross_entropy_forward_cuda(input)
                                                : detail::linear_cross_entropy_forward_aten(input);
    }
    variable_list saved = {input.bias, targets, output.lse};
    saved.insert(saved.end(), factors.begin(), factors.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["softcap"] = softcap;
    context->saved_data["z_loss_weight"] = z_loss_weight;
    context->saved_data["filter_eps"] = filter.eps;
    context->saved_data["filters_hidden"] = filter.of_hidden;
    context->saved_data["filters_weights"] = filter.of_weights;
    context->saved_data["num_weights"] = num_weights;
    context->saved_data["num_factors"] = static_cast<std::int64_t>(factors.size());
    context->saved_data["has_bias"] = bias.has_value();
    context->set_materialize_grads(false);
    return {output.loss, output.lse};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("linear_cross_entropy");
    const std::int64_t num_weights = context->saved_data["num_weights"].toInt();
    const auto num_factors = static_cast<std::size_t>(context->saved_data["num_factors"].toInt());
    std::vector<bool> wanted;
    for (std::size_t i = 0; i < num_factors; ++i) wanted.push_back(context->needs_input_grad(i));
    wanted.push_back(context->saved_data["has_bias"].toBool() && context->needs_input_grad(num_factors));
    constexpr std::size_t kNumOthers = 9;  // arguments that are not factors
    variable_list result(num_factors + kNumOthers);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    variable_list made = take_gradients(context, grads, wanted, num_weights);
    if (made.empty()) {
      made = in_order(compute_gradients(context, grads, by_name(wanted, num_weights, places(wanted, num_weights))));
    }
    std::move(made.begin(), made.begin() + num_factors, result.begin());
    result[num_factors + 1] = std::move(made.back());  // num_weights comes before the bias
    return result;
  }

 private:
  static detail::GradientFilter saved_filter(AutogradContext* context) {
    return {.eps = context->saved_data["filter_eps"].toDouble(),
            .of_hidden = context->saved_data["filters_hidden"].toBool(),
            .of_weights = context->saved_data["filters_weights"].toBool()};
  }

  // Products of consecutive factors.
  static std::vector<detail::LogitFactors> products_of(at::TensorList factors, std::int64_t num_weights) {
    std::vector<detail::LogitFactors> products;
    for (auto hidden = factors.begin(); hidden != factors.end(); hidden += 1 + num_weights)
      products.push_back({.hidden = *hidden, .weights = {hidden + 1, hidden + 1 + num_weights}});
    return products;
  }

  static bool is_weight(std::size_t factor, std::int64_t num_weights) { return factor % (1 + num_weights) != 0; }

  using Places = std::vector<std::optional<GradientPlace>>;  // for each factor
  static detail::LinearCrossEntropyWanted by_name(const std::vector<bool>& wanted, std::int64_t num_weights,
                                                  const Places& places = {}) {
    detail::LinearCrossEntropyWanted result{.products = {}, .bias = wanted.back()};
    for (std::size_t i = 0; i + 1 < wanted.size(); ++i) {
      if (!is_weight(i, num_weights)) {
        result.products.push_back({.hidden = wanted[i]});
        continue;
      }
      result.products.back().weights.push_back(wanted[i]);
      if (!places.empty()) result.products.back().places.push_back(places[i]);
    }
    return result;
  }

  // The gradient places of the weights whose gradients are wanted. The caller must fill them right away.
  static Places places(const std::vector<bool>& wanted, std::int64_t num_weights) {
    Places result(wanted.size() - 1);
    for (std::size_t i = 0; i < result.size(); ++i)
      if (wanted[i] && is_weight(i, num_weights)) result[i] = gradient_place(i);
    return result;
  }

  // The factors' gradients, then that of the bias.
  static variable_list in_order(detail::LinearCrossEntropyBackward gradients) {
    variable_list result;
    for (detail::LogitFactors& product : gradients.products) {
      result.push_back(std::move(product.hidden));
      std::move(product.weights.begin(), product.weights.end(), std::back_inserter(result));
    }
    result.push_back(std::move(gradients.bias));
    return result;
  }

  // The gradients that forward computed, scaled by grads[0]. Each is handed out only once. Empty if they do not fit
  // `grads`, or if a wanted one was handed out before or not computed.
  static variable_list take_gradients(AutogradContext* context, const variable_list& grads,
                                      const std::vector<bool>& wanted, std::int64_t num_weights) {
    if (!is_multiple_of_sum(grads)) context->saved_data.erase(kGradients);  // frees memory for recomputing them
    if (context->saved_data.find(kGradients) == context->saved_data.end()) return {};
    c10::List<at::Tensor> kept = context->saved_data[kGradients].toTensorList();
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] && !kept.get(i).defined()) return {};
    Places all = places(wanted, num_weights);
    all.emplace_back();  // of the bias
    variable_list result(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i]) result[i] = scaled(kept.extract(i), grads[0], all[i]);
    return result;
  }

  // gradient * factor in bf16, the dtype of all inputs here; undefined if it was written to `place`.
  static at::Tensor scaled(at::Tensor gradient, const at::Tensor& factor, const std::optional<GradientPlace>& place) {
    if (gradient.is_meta()) return place ? at::Tensor() : gradient.to(at::kBFloat16);
    if (!place && gradient.scalar_type() == at::kBFloat16) {
      detail::scale_cuda_(gradient, factor);
      return gradient;
    }
    at::Tensor result;
    if (!place) result = at::empty(gradient.sizes(), gradient.options().dtype(at::kBFloat16));
    detail::put_scaled_cuda(place.value_or(GradientPlace{.tensor = result}), gradient, factor);
    return result;
  }

  static detail::LinearCrossEntropyBackward compute_gradients(AutogradContext* context, const variable_list& grads,
                                                              const detail::LinearCrossEntropyWanted& wanted) {
    const variable_list saved = context->get_saved_variables();
    const variable_list factors(saved.begin() + 3, saved.end());
    const detail::LinearCrossEntropyInput input{
        .products = products_of(factors, context->saved_data["num_weights"].toInt()),
        .bias = saved[0],
        .targets = saved[1],
        .softcap = context->saved_data["softcap"].toOptional<double>(),
        .z_loss_weight = context->saved_data["z_loss_weight"].toDouble(),
        .chunk_size = context->saved_data["chunk_size"].toInt(),
        .filter = saved_filter(context)};
    return detail::has_cuda_kernels(input.hidden())
               ? detail::linear_cross_entropy_backward_cuda(input, saved[2], grads[0], grads[1], wanted)
               : detail::linear_cross_entropy_backward_aten(input, saved[2], grads[0], grads[1], wanted);
  }
};

// Which gradients the backward of this call may ask for: of each factor, and the bias. Empty if forward does not
// compute gradients.
std::vector<bool> wanted_in_forward(at::TensorList factors, const LinearCrossEntropyOptions& options) {
  if (!c10::GradMode::is_enabled() || !makes_gradients_in_forward(factors.front(), options)) return {};
  std::vector<bool> wanted;
  for (const at::Tensor& factor : factors) wanted.push_back(factor.requires_grad());
  wanted.push_back(options.bias && options.bias->requires_grad());
  return std::ranges::find(wanted, true) == wanted.end() ? std::vector<bool>{} : wanted;
}

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
  const at::Tensor row_targets = checked_targets(shifted(targets, options), options, vocabulary_size(weight));
  std::vector<at::Tensor> factors = {hidden.reshape({targets.numel(), hidden.size(-1)})};
  factors.insert(factors.end(), weight.begin(), weight.end());
  if (options.low_rank) {
    const LowRankLogits& term = *options.low_rank;
    factors.push_back(term.hidden.reshape({targets.numel(), term.hidden.size(-1)}));
    factors.insert(factors.end(), term.weights.begin(), term.weights.end());
  }
  const variable_list rows = LinearCrossEntropy::apply(at::TensorList(factors), std::ssize(weight), options.bias,
                                                       row_targets.reshape(-1).contiguous(), options.softcap,
                                                       options.z_loss_weight, options.chunk_size, filter_of(options),
                                                       options.shard, wanted_in_forward(factors, options));
  const auto at_targets = [&](const at::Tensor& of_rows) {
    return unshifted(of_rows.view(targets.sizes()), options.shift);
  };
  const at::Tensor loss =
      options.reduction == Reduction::kNone ? at_targets(rows[0]) : reduced(rows[0], row_targets, options.reduction);
  return {.loss = loss, .lse = at_targets(rows[1])};
}

}  // namespace d9d::kernels
