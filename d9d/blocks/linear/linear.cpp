#include "d9d/blocks/linear/linear.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/modules/product_flops.h"

namespace d9d {
namespace {

const LinearConfig& checked(const LinearConfig& config) {
  D9D_CHECK(config.in_features > 0 && config.out_features > 0, ConfigError,
            "[blocks::linear] expected positive features, got in = ", config.in_features,
            ", out = ", config.out_features, ".");
  return config;
}

Initializer fan_in(const LinearConfig& config) {
  return init::uniform(1.0 / std::sqrt(static_cast<double>(config.in_features)));
}

}  // namespace

Linear::Linear(const LinearConfig& configuration)
    : config(checked(configuration)),
      weight(register_parameter(
          "weight", {.shape = {config.out_features, config.in_features}, .init = fan_in(config), .role = config.role})),
      bias(config.has_bias
               ? register_parameter(
                     "bias", {.shape = {config.out_features}, .init = fan_in(config), .role = ParameterRole::kVector})
               : nullptr) {}

double Linear::training_flops(std::int64_t /*num_positions*/) const { return product_flops(*weight); }

std::vector<kernels::LowRankTerm> Linear::low_rank_terms(std::size_t output) const {
  if (!adapter_is_term()) return {};
  return {{.a = adapter()->a->weight->local(),
           .b = computed_rows(adapter()->b->weight->local()),
           .scale = adapter()->scale,
           .output = output}};
}

namespace {

// y, and the adapter's term if low_rank_terms() has not put it there.
at::Tensor with_term(const Linear& linear, const at::Tensor& x, const at::Tensor& y) {
  return linear.adapter_is_term() ? y : y + (*linear.adapter())(x);
}

at::Tensor row_norms(const Linear& linear) {
  const auto& adapter = *linear.adapter();
  const at::NoGradGuard no_grad;
  return norms_of_rows(squares_of_rows(linear.computed_rows(linear.weight->local()), adapter.a->weight->local(),
                                       linear.computed_rows(adapter.b->weight->local()), adapter.scale),
                       *linear.weight);
}

// y, and what the adapter adds to it. y: the product with the weight, low_rank_terms() and, if there are no magnitudes,
// perhaps a bias.
at::Tensor adapted(const Linear& linear, const at::Tensor& x, const at::Tensor& y) {
  if (!linear.adapter()) return y;
  const auto& adapter = *linear.adapter();
  if (!adapter.magnitude) return with_term(linear, x, y);
  const auto scaled = [&](const at::Tensor& product) { return adapter.magnitude(product, row_norms(linear)); };
  if (!adapter.dropout || !adapter.dropout->is_training()) {
    return scaled(with_term(linear, x, y));
  }
  // As Hugging Face peft: magnitudes change the product with what dropout leaves.
  const at::Tensor left = adapter.dropout(x);
  const at::Tensor of_left = kernels::linear(left, linear.computed_rows(linear.weight->local()));
  return y - of_left + scaled(of_left + adapter.from_hidden(adapter.a(left)));
}

at::Tensor output_of(const Linear& linear, const at::Tensor& x, const std::vector<at::Tensor>& biases) {
  const at::Tensor weight = linear.computed_rows(linear.weight->local());
  return adapted(linear, x, kernels::linears(x, {weight}, biases, linear.low_rank_terms()).front());
}

}  // namespace

at::Tensor Linear::forward(const at::Tensor& x) const { return forward(x, LinearBias::kAdded); }

at::Tensor Linear::forward(const at::Tensor& x, LinearBias use) const {
  if (!bias || use == LinearBias::kLeftOut) return output_of(*this, x, /*biases=*/{});
  const at::Tensor own_bias = computed_rows(bias->local());
  if (has_magnitude()) return output_of(*this, x, /*biases=*/{}) + own_bias;
  return output_of(*this, x, {own_bias});
}

void Linear::add_adapter(const LowRankConfig& low_rank) {
  const auto make = [&](std::int64_t in_features, std::int64_t out_features) {
    return make_module<Linear>(LinearConfig{in_features, out_features, /*has_bias=*/false, config.role});
  };
  const ModulePtr<Linear> b = make(low_rank.rank, config.out_features);
  b->weight->set_init(init::zeros());
  const at::ScalarType dtype = weight->local().scalar_type();
  ModulePtr<Magnitude> magnitude;
  if (low_rank.has_magnitude) {
    magnitude = make_module<Magnitude>(config.out_features);
    magnitude->to(at::promote_types(dtype, at::kFloat));
  }
  put_new_adapter(make(config.in_features, low_rank.rank), b, low_rank, dtype, magnitude);
}

void Linear::compute_only(const FlatRange& outputs, const DeviceMesh& ranks) {
  D9D_ASSERT(weight->local().size(0) == config.out_features, "a rank that has the whole weight");
  computed_ = outputs;
  if (!adapter()) return;
  adapter()->b->compute_only(outputs, ranks);
  if (adapter()->dropout) adapter()->dropout->add_cut({.ranks = PositionCut(ranks)});
  if (adapter()->magnitude) adapter()->magnitude->compute_only(outputs);
}

at::Tensor Linear::computed_rows(const at::Tensor& rows) const {
  return computed_ ? rows.narrow(0, computed_->begin, computed_->numel()) : rows;
}

std::vector<at::Tensor> linears_of(const at::Tensor& x, const std::vector<ModulePtr<Linear>>& linears,
                                   const kernels::RowEdges& edges) {
  std::vector<at::Tensor> outputs;
  const bool has_biases = linears.front()->config.has_bias;
  if (std::ranges::all_of(linears, [&](const ModulePtr<Linear>& linear) {
        return linear->is_plain() && linear->config.has_bias == has_biases;
      })) {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases, own_biases;  // those of the operator, those that follow it
    const bool scales = std::ranges::any_of(linears, [](const auto& linear) { return linear->has_magnitude(); });
    std::vector<kernels::LowRankTerm> terms;
    for (const ModulePtr<Linear>& linear : linears) {
      for (kernels::LowRankTerm& term : linear->low_rank_terms(weights.size())) terms.push_back(std::move(term));
      weights.push_back(linear->computed_rows(linear->weight->local()));
      if (linear->bias) {
        (scales || edges.output ? own_biases : biases).push_back(linear->computed_rows(linear->bias->local()));
      }
    }
    outputs = kernels::linears(x, weights, biases, terms, edges);
    for (std::size_t i = 0; i < linears.size(); ++i) {
      outputs[i] = adapted(*linears[i], x, outputs[i]);
      if (!own_biases.empty()) outputs[i] = outputs[i] + own_biases[i];
    }
    return outputs;
  }
  for (const ModulePtr<Linear>& linear : linears) outputs.push_back(linear(x));
  return outputs;
}

bool are_products(const std::vector<ModulePtr<Linear>>& linears) {
  return std::ranges::all_of(linears, [&](const ModulePtr<Linear>& linear) {
    return linear->is_plain() && linear->config.has_bias == linears.front()->config.has_bias &&
           (!linear->adapter() || (linear->adapter_is_term() && !linear->has_magnitude()));
  });
}

void add_columns(TensorPlan& plan, const ModulePtr<Linear>& linear, std::int64_t unit) {
  const Shard rows{0, unit};
  plan.parameters.push_back({linear->weight, rows});
  plan.parameters.push_back({linear->bias, rows});
  if (!linear->adapter()) return;
  plan.parameters.push_back({linear->adapter()->a->weight, Replicate{}});
  plan.parameters.push_back({linear->adapter()->b->weight, rows});
  if (linear->has_magnitude()) plan.parameters.push_back({linear->adapter()->magnitude->weight, rows});
}

void add_rows(TensorPlan& plan, const ModulePtr<Linear>& linear, std::int64_t unit) {
  const Shard columns{1, unit};
  plan.parameters.push_back({linear->weight, columns});
  plan.parameters.push_back({linear->bias, Replicate{}});  // added once, after the sum over ranks
  if (!linear->adapter()) return;
  plan.parameters.push_back({linear->adapter()->a->weight, columns});
  plan.parameters.push_back({linear->adapter()->b->weight, Replicate{}});
  if (linear->has_magnitude()) plan.parameters.push_back({linear->adapter()->magnitude->weight, Replicate{}});
}

void add_whole(TensorPlan& plan, const ModulePtr<Linear>& linear) {
  for (const auto& [name, parameter] : linear->named_parameters()) plan.parameters.push_back({parameter, Replicate{}});
}

void join_weights(const std::vector<ModulePtr<Linear>>& linears) {
  const at::Tensor& first = linears.front()->weight->local();
  std::int64_t numel = 0;
  for (const ModulePtr<Linear>& linear : linears) {
    const Parameter& weight = *linear->weight;
    if (has_flat_shard(weight.placements()) || weight.local().scalar_type() != first.scalar_type()) return;
    numel += weight.local().numel();
  }
  const at::Tensor joined = at::empty({numel}, first.options());
  std::int64_t offset = 0;
  for (const ModulePtr<Linear>& linear : linears) {
    const at::Tensor& weight = linear->weight->local();
    const at::Tensor part = joined.narrow(0, offset, weight.numel()).view(weight.sizes());
    offset += weight.numel();
    linear->weight->replace_local(part.variable_data());
  }
}

}  // namespace d9d
