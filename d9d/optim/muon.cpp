#include "d9d/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/kernels/momentum/momentum.h"
#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::string_view kMuon = "Muon";

// The options of the parameters that AdamW updates.
struct OptionsOfAdamW {
  double weight_decay;
  std::pair<double, double> betas;
  const std::vector<MuonGroupConfig>& groups;
  bool decay_all;
};

bool is_orthogonalized(const NamedParameter& parameter, const ParameterGroups& groups, const MuonConfig& config) {
  const std::size_t group = groups.index_of(parameter.name);
  const auto rule = group < config.groups.size() ? config.groups[group].rule : std::nullopt;
  if (!rule) return is_hidden_matrix(parameter);
  const std::vector<std::int64_t> shape = detail::whole_shape(parameter);
  D9D_CHECK(*rule == MuonRule::kAdamW || shape.size() == 2 || is_hidden_matrix(parameter), ConfigError,
            "[optim::Muon] expected matrices in group '", config.groups[group].group.name, "' of rule \"muon\", got '",
            parameter.name, "' of shape ", at::IntArrayRef(shape), ". Give this parameter to AdamW.");
  return *rule == MuonRule::kMuon;
}

double factor_of_sizes(const NamedParameter& parameter, AdjustLr adjust) {
  const std::vector<std::int64_t> shape = detail::whole_shape(parameter);
  const auto out = static_cast<double>(shape.size() == 3 ? shape[2] : shape[0]);
  const auto in = static_cast<double>(shape[1]);
  if (adjust == AdjustLr::kMatchRmsAdamW) return 0.2 * std::sqrt(std::max(out, in));
  return std::sqrt(std::max(1.0, out / in));
}

at::ScalarType dtype_of_products(const at::Tensor& parameter, const std::optional<Dtype>& wanted) {
  if (parameter.scalar_type() == at::kDouble) return at::kDouble;
  if (wanted) return to_scalar_type(*wanted);
  return parameter.is_cuda() ? at::kBFloat16 : at::kFloat;
}

void check(const MuonConfig& config) {
  detail::check_not_negative("lr", config.lr, kMuon);
  detail::check_not_negative("adamw.eps", config.adamw.eps, kMuon);
  detail::check_not_negative("ns_steps", static_cast<double>(config.ns_steps), kMuon);
  detail::check_not_negative("bucket_size_mb", static_cast<double>(config.bucket_size_mb), kMuon);
  D9D_CHECK(config.eps > 0 && config.adamw.lr_factor > 0, ConfigError,
            "[optim::Muon] expected eps and adamw.lr_factor > 0, got ", config.eps, " and ", config.adamw.lr_factor,
            ". Use positive numbers.");
  config.validate(ConfigPath{.keys = "optimizer"});
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.contiguous().view({-1}); }

}  // namespace

bool is_hidden_matrix(const NamedParameter& parameter) {
  const std::size_t num_dims = detail::whole_shape(parameter).size();
  if (parameter.role == ParameterRole::kGroupedLinear) return num_dims == 3;
  return num_dims == 2 && (parameter.role == ParameterRole::kLinear || parameter.role == ParameterRole::kUnknown);
}

Muon::Muon(const std::vector<NamedParameter>& parameters, const MuonConfig& config) : config_(config) {
  check(config);
  detail::check_leaves(parameters, kMuon);
  newton_schulz_ = {.num_steps = config.ns_steps, .eps = config.eps};
  std::ranges::copy(config.ns_coefficients, newton_schulz_.coefficients.begin());
  const std::string place = "[optim::Muon] ";
  const ParameterGroups groups(config, place);
  const ParameterGroups groups_of_adamw(OptionsOfAdamW{.weight_decay = config.adamw.weight_decay,
                                                       .betas = config.adamw.betas,
                                                       .groups = config.groups,
                                                       .decay_all = config.decay_all},
                                        place);
  std::vector<NamedParameter> others;
  for (const NamedParameter& parameter : parameters) {
    if (!is_orthogonalized(parameter, groups, config)) {
      others.push_back(parameter);
      continue;
    }
    const ParameterOptions options = groups.options_of(parameter);
    D9D_CHECK(options.momentum < 1, ConfigError, place, "expected momentum < 1 of '", parameter.name, "', got ",
              options.momentum, ". The usual one is 0.95.");
    add_to_bucket({.parameter = parameter,
                   .options = options,
                   .rate_factor = factor_of_sizes(parameter, config.adjust_lr_fn),
                   .momentum_buffer = detail::zero_state(parameter)});
  }
  make_plans();
  moments_ = detail::make_moments(others, groups_of_adamw, {.optimizer = kMuon, .dtype = detail::state_dtype});
  for (detail::Moments& each : moments_) each.options.lr_factor *= config.adamw.lr_factor;
  rate_factors_ = groups.rate_factors();
}

void Muon::add_to_bucket(Matrices matrices) {
  const NamedParameter& parameter = matrices.parameter;
  const at::ScalarType dtype = dtype_of_products(parameter.tensor, config_.products_dtype);
  const std::int64_t num_elements =
      c10::multiply_integers(detail::whole_shape(parameter)) / detail::num_holders(parameter);
  const auto goes_with = [&](const Bucket& bucket) {
    const NamedParameter& first = bucket.matrices.front().parameter;
    return bucket.dtype == dtype && first.tensor.device() == parameter.tensor.device() &&
           first.mesh == parameter.mesh && detail::matrix_axes(first) == detail::matrix_axes(parameter);
  };
  // The last bucket of its kind, if there is room in it.
  const auto last = std::find_if(buckets_.rbegin(), buckets_.rend(), goes_with);
  const auto num_bytes = [&](std::int64_t count) { return static_cast<double>(count) * at::elementSize(dtype); };
  const double most = static_cast<double>(config_.bucket_size_mb) * (1 << 20);
  if (last != buckets_.rend() && num_bytes(last->num_elements + num_elements) <= most) {
    last->matrices.push_back(std::move(matrices));
    last->num_elements += num_elements;
    return;
  }
  buckets_.push_back({.dtype = dtype, .num_elements = num_elements});
  buckets_.back().matrices.push_back(std::move(matrices));
}

void Muon::make_plans() {
  std::map<std::vector<std::int64_t>, std::vector<double>> loads;  // by the ranks of the job that share matrices
  for (Bucket& bucket : buckets_) {
    std::vector<NamedParameter> parameters;
    for (const Matrices& each : bucket.matrices) parameters.push_back(each.parameter);
    const DeviceMesh ranks = detail::matrix_ranks(parameters.front());
    bucket.plan = detail::plan_matrices(parameters, loads[ranks.ranks()]);
    if (ranks.num_ranks() == 1) continue;
    bucket.ranks = ranks.communicator();
    if (!exchanges_) exchanges_.emplace(bucket.ranks->device());
  }
}

void Muon::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void Muon::step(double learning_rate, const at::Tensor& grad_scale) {
  const at::NoGradGuard no_grad;
  detail::check_learning_rate(learning_rate, kMuon);
  const at::Tensor unless_nan = at::where(grad_scale.isnan(), grad_scale, at::ones_like(grad_scale));
  std::vector<Flight> flights(buckets_.size());
  const auto send = [&](std::size_t i) {
    if (i < buckets_.size()) flights[i] = send_directions(buckets_[i], grad_scale);
  };
  send(0);
  detail::step(moments_, {.optimizer = kMuon, .learning_rate = learning_rate, .eps = config_.adamw.eps}, grad_scale);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    send(i + 1);
    orthogonalize(buckets_[i], flights[i]);
    if (i > 0) apply_updates(buckets_[i - 1], flights[i - 1], learning_rate, unless_nan);
  }
  if (!buckets_.empty()) apply_updates(buckets_.back(), flights.back(), learning_rate, unless_nan);
}

Muon::Flight Muon::send_directions(const Bucket& bucket, const at::Tensor& grad_scale) const {
  const detail::MatrixPlan& plan = bucket.plan;
  const auto empty = [&](const std::vector<std::int64_t>& splits) {
    const std::int64_t numel = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
    return at::empty({numel}, bucket.matrices.front().momentum_buffer.options().dtype(bucket.dtype));
  };
  // Zeros stay where a parameter has no gradient, and everywhere if grad_scale is NaN.
  Flight flight{.held = empty(plan.held_splits).zero_(), .owned = {}, .work = {}};
  std::map<double, std::vector<kernels::MomentumTensors>> batches;  // by momentum
  std::map<std::size_t, at::Tensor> gradients;                      // flat
  for (const detail::HeldSlice& slice : plan.held) {
    const auto& [parameter, options, rate_factor, momentum_buffer] = bucket.matrices[slice.parameter];
    if (!parameter.tensor.grad().defined()) continue;
    detail::check_dense_gradient(parameter, kMuon);
    at::Tensor& gradient = gradients[slice.parameter];
    if (!gradient.defined()) gradient = flat(parameter.tensor.grad());
    batches[options.momentum].push_back({.parameter = flight.held.narrow(0, slice.offset, slice.numel),
                                         .grad = gradient.narrow(0, slice.begin, slice.numel),
                                         .buffer = momentum_buffer.view({-1}).narrow(0, slice.begin, slice.numel)});
  }
  for (const auto& [momentum, tensors] : batches) {
    kernels::MomentumFactors factors{.buffer_decay = momentum,
                                     .buffer_grad = 1 - momentum,
                                     .update_buffer = momentum,
                                     .update_grad = 1 - momentum,
                                     .parameter_decay = 0,
                                     .step_size = -1};
    if (config_.nesterov) {
      factors.update_buffer = momentum * momentum;
      factors.update_grad = 1 - momentum * momentum;
    }
    kernels::momentum_(tensors, factors, grad_scale);
  }
  if (bucket.ranks == nullptr) {
    flight.owned = flight.held;
  } else {
    flight.owned = empty(plan.owned_splits);
    const NamedRange range("directions to owners");
    (void)exchanges_->run([&] {
      flight.work = bucket.ranks->all_to_all(flight.owned, flight.held, plan.owned_splits, plan.held_splits);
    });
  }
  return flight;
}

void Muon::orthogonalize(const Bucket& bucket, Flight& flight) const {
  flight.work.wait();
  const NamedRange range("orthogonalize");
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<const detail::OwnedMatrix*>> by_shape;
  for (const detail::OwnedMatrix& matrix : bucket.plan.owned) by_shape[{matrix.rows, matrix.cols}].push_back(&matrix);
  const auto visit = [&](const std::vector<const detail::OwnedMatrix*>& matrices, const at::Tensor& values,
                         const auto& copy) {
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      for (const detail::OwnedSlice& slice : matrices[i]->slices) {
        copy(values[static_cast<std::int64_t>(i)], flight.owned.narrow(0, slice.offset, slice.numel), slice);
      }
    }
  };
  for (const auto& [shape, matrices] : by_shape) {
    const at::Tensor directions = at::empty({std::ssize(matrices), shape.first, shape.second}, flight.owned.options());
    visit(matrices, directions, detail::copy_slice_to_matrix);
    visit(matrices, orthogonalized(directions, newton_schulz_), detail::copy_matrix_to_slice);
  }
  if (bucket.ranks == nullptr) return;
  const NamedRange of_exchange("updates of owners");
  (void)exchanges_->run([&] {
    flight.work =
        bucket.ranks->all_to_all(flight.held, flight.owned, bucket.plan.held_splits, bucket.plan.owned_splits);
  });
}

void Muon::apply_updates(const Bucket& bucket, Flight& flight, double learning_rate,
                         const at::Tensor& unless_nan) const {
  flight.work.wait();
  std::map<std::pair<double, double>, std::vector<kernels::MomentumTensors>> batches;  // by step size and decay
  std::map<std::size_t, at::Tensor> values;                                            // of parameters, flat
  for (const detail::HeldSlice& slice : bucket.plan.held) {
    const auto& [parameter, options, rate_factor, momentum_buffer] = bucket.matrices[slice.parameter];
    if (!parameter.tensor.grad().defined()) continue;
    at::Tensor& whole = values[slice.parameter];
    if (!whole.defined()) whole = flat(parameter.tensor);
    const double rate = learning_rate * options.lr_factor;
    batches[{rate * rate_factor, 1 - rate * options.weight_decay}].push_back(
        {.parameter = whole.narrow(0, slice.begin, slice.numel),
         .grad = flight.held.narrow(0, slice.offset, slice.numel),
         .buffer = {}});
  }
  for (const auto& [factors, tensors] : batches) {
    kernels::momentum_(tensors, {.parameter_decay = factors.second, .step_size = factors.first}, unless_nan);
  }
  for (const auto& [index, whole] : values) {
    const at::Tensor& parameter = bucket.matrices[index].parameter.tensor;
    if (!parameter.is_contiguous()) parameter.copy_(whole.view(parameter.sizes()));
  }
  flight = {};
}

std::map<std::string, DTensor> Muon::state_dict() const {
  std::map<std::string, DTensor> state = detail::state_of(moments_);
  for (const Bucket& bucket : buckets_) {
    for (const Matrices& each : bucket.matrices) {
      state.emplace(each.parameter.name + ".momentum_buffer", each.parameter.laid_out(each.momentum_buffer));
    }
  }
  return state;
}

}  // namespace d9d
