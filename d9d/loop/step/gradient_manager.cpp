#include "d9d/loop/step/gradient_manager.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/named_range.h"
#include "d9d/internals/grad_norm/grad_norm.h"
#include "d9d/loop/step/loss_scales.h"
#include "d9d/parallelism/fsdp/fsdp_runtime.h"

namespace d9d {
namespace {

// Indices of Pending::totals.
constexpr int kLoss = 0, kWeight = 1, kTokens = 2, kDisagreement = 3, kNumSums = 4, kNorm = 4, kScale = 5, kNumbers = 6;
// Allows for rounding: GradientReduction::disagreement() is 0 or at least 0.5.
constexpr double kMaxDisagreement = 0.25;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Omits the sign of a NaN, which has no meaning.
std::string text_of(double value) { return std::isnan(value) ? "nan" : cat(value); }

bool is_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

}  // namespace

GradientManager::GradientManager(const DistContext& context, Module& module, const GradientManagerConfig& config,
                                 const GradientClippingConfig& clipping, GradientMemory memory,
                                 const std::vector<std::shared_ptr<Module>>& stages)
    : parameters_(module.named_parameters()),
      tied_(context, stages),
      pipeline_(context.mesh(MeshDomain::kRegular).slice({"pp"})),
      ranks_(context.mesh(MeshDomain::kBatch)),
      counts_(ranks_.axis_coordinate("tp") == 0),
      device_(context.device()),
      copies_(device_),
      world_(context.world()),
      clipping_(clipping) {
  const BucketedReductionConfig buckets{.bucket_size_bytes = config.bucket_size_mb << 20,
                                        .gradient_dtype = config.grad_dtype,
                                        .keeps_memory = memory == GradientMemory::kKept};
  const auto is_fsdp = [](const auto& each) { return dynamic_cast<const FsdpRuntime*>(each.get()) != nullptr; };
  const auto add_stage = [&](Module& stage) {
    StageReductions reductions{.bucketed = nullptr, .all = gradient_reductions(stage)};
    D9D_CHECK(
        std::ranges::count_if(reductions.all, is_fsdp) <= 1, ConfigError,
        "[loop::gradients] expected one FsdpRuntime for all sharded units of a model, got several, whose collectives "
        "would mix. Give parallelize_fsdp() the same one.");
    for (const auto& reduction : reductions.all) reduction->set_gradient_dtype(config.grad_dtype);
    reductions.bucketed = std::make_shared<BucketedReduction>(stage.named_parameters(), buckets);
    reductions.all.push_back(reductions.bucketed);
    reductions_.insert(reductions_.end(), reductions.all.begin(), reductions.all.end());
    stages_.push_back(std::move(reductions));
  };
  if (stages.empty()) add_stage(module);
  for (const auto& stage : stages) add_stage(*stage);
  std::vector<ParameterPtr> parameters;
  for (const auto& [name, parameter] : parameters_) {
    if (!tied_.is_counted_before(parameter)) parameters.push_back(parameter);
  }
  norm_groups_ = group_parameters_for_norm(parameters);
}

void GradientManager::begin_evaluation() {
  tied_.begin_step();
  for (const auto& reduction : reductions_) reduction->begin_evaluation();
}

void GradientManager::end_evaluation() {
  for (const auto& reduction : reductions_) reduction->end_evaluation();
  tied_.end_step();
}

void GradientManager::begin_pass(std::size_t stage, const StagePass& pass) {
  if (pass.kind != StagePassKind::kBackward) tied_.begin_step();
  for (const auto& reduction : stages_[stage].all) reduction->begin_pass(pass);
}

void GradientManager::end_pass(std::size_t stage) {
  for (const auto& reduction : stages_[stage].all) reduction->end_pass();
}

void GradientManager::begin_microbatch(bool is_last) {
  for (const auto& reduction : reductions_) reduction->begin_microbatch(is_last);
}

void GradientManager::end_microbatch() {
  for (const auto& reduction : reductions_) reduction->end_microbatch();
}

void GradientManager::add_loss_with_weight(const at::Tensor& loss, const at::Tensor& weight) {
  const at::Tensor wide_weight = marked_if_negative(weight.detach().to(at::kDouble));
  const at::Tensor weighted = loss.detach().to(at::kDouble) * wide_weight;
  weighted_loss_ = weighted_loss_.defined() ? weighted_loss_ + weighted : weighted;
  total_weight_ = total_weight_.defined() ? total_weight_ + wide_weight : wide_weight;
  losses_.emplace_back(weighted, wide_weight);
}

// Returns the entries of Pending::totals that are sums over ranks, as fp64 on the device, with one all-reduce.
at::Tensor GradientManager::sum_over_ranks(const RankReport& report) const {
  const at::TensorOptions options = at::TensorOptions(device_).dtype(at::kDouble);
  const at::Tensor zero = at::zeros({}, options);
  const bool has_loss = counts_ && total_weight_.defined();
  at::Tensor disagreement = zero;
  for (const auto& reduction : reductions_) {
    if (const at::Tensor own = reduction->disagreement(); own.defined()) disagreement = disagreement + own.to(device_);
  }
  const bool has_tokens = counts_ && pipeline_.index() == 0 && report.num_tokens != 0;
  const at::Tensor tokens = has_tokens ? at::full({}, static_cast<double>(report.num_tokens), options) : zero;
  const at::Tensor numbers = at::zeros({std::ssize(report.numbers)}, options);
  for (std::int64_t i = 0; i < numbers.size(0); ++i) {  // a fill does not wait for the device, as a copy would
    if (const double number = report.numbers[static_cast<std::size_t>(i)]; number != 0) numbers[i].fill_(number);
  }
  const at::Tensor totals = at::cat({at::stack({has_loss ? weighted_loss_.to(device_) : zero,
                                                has_loss ? total_weight_.to(device_) : zero, tokens, disagreement}),
                                     numbers});
  if (ranks_.num_ranks() > 1) ranks_.communicator()->all_reduce(totals, ReduceOp::kSum).wait();
  return totals;
}

// Returns the clip coefficient divided by the total weight. NaN if the loss or the norm is not finite, which includes a
// total weight of 0, if the step is a spike, or if ranks have not reduced the same modules.
at::Tensor GradientManager::grad_scale_of(const at::Tensor& sums, const at::Tensor& norm,
                                          const StepLimits& limits) const {
  const at::Tensor weight = sums[kWeight];
  const at::Tensor loss = sums[kLoss] / weight, norm_of_step = norm / weight.abs();
  const at::Tensor clip =
      clipping_.max_norm ? clip_coefficient(norm_of_step, *clipping_.max_norm) : at::ones_like(norm);
  const at::Tensor scale = clip / weight + 0 * loss + 0 * norm_of_step;
  at::Tensor is_refused = sums[kDisagreement] > kMaxDisagreement;
  if (limits.are_set()) is_refused = is_refused | (loss > limits.loss) | (norm_of_step > limits.norm);
  return scale.masked_fill(is_refused, std::numeric_limits<double>::quiet_NaN());
}

GradientManager::Pending GradientManager::sum_step(const RankReport& report) {
  D9D_CHECK(total_weight_.defined() || ranks_.axis_size("pp") > 1, StateError,
            "[loop::gradients] expected at least one microbatch with a loss in the step, got none.");
  const at::NoGradGuard no_grad;
  for (const auto& reduction : reductions_) reduction->finish();
  const at::Tensor sums = sum_over_ranks(report);
  tied_.sum_gradients();
  const at::Tensor norm = distributed_grad_norm(norm_groups_, 2.0, pipeline_).to(sums.options());
  const at::Tensor scale = grad_scale_of(sums, norm, report.limits);
  const at::Tensor numbers = sums.narrow(0, kNumSums, sums.size(0) - kNumSums);
  std::vector<at::Tensor> totals = {sums.narrow(0, 0, kNumSums), norm.view(1), scale.view(1), numbers};
  if (report.measures_layers) totals.push_back(norms_by_layer().to(sums.options()));
  return {.grad_scale = scale, .totals = HostCopy(at::cat(totals), copies_, world_), .num_numbers = numbers.numel()};
}

at::Tensor GradientManager::norms_by_layer() {
  if (!layer_norms_) layer_norms_.emplace(parameters_, layer_of, pipeline_);
  return at::cat({layer_norms_->of_gradients(), layer_norms_->of_parameters()});
}

std::vector<std::pair<std::string, double>> GradientManager::named_layer_norms(const double* norms,
                                                                               double weight) const {
  std::vector<std::pair<std::string, double>> named;
  const std::vector<PartNorms::Part>& layers = layer_norms_->parts();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double norm = weight == 0 ? 0 : norms[i] / std::abs(weight);
    if (layers[i].is_trained) named.emplace_back("grad_norm/" + layers[i].name, norm);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    named.emplace_back("param_norm/" + layers[i].name, norms[layers.size() + i]);
  }
  return named;
}

StepTotals GradientManager::read_step(const Pending& pending, const StepLimits& limits) const {
  const at::Tensor& totals = pending.totals.wait();
  const double* const total = totals.const_data_ptr<double>();
  D9D_CHECK(
      total[kDisagreement] <= kMaxDisagreement, StateError,
      "[loop::gradients] expected all ranks to gather and reduce the same sharded modules in a step, got others on "
      "some ranks. Give all ranks equally many microbatches, and run all modules on all ranks. A rank's loss may leave "
      "out modules, but no part of a checkpoint() around several sharded modules.");
  D9D_CHECK(total[kWeight] != -kInfinity, StateError,
            "[loop::gradients] expected loss weights >= 0 of TrainTask, got a negative one. Weigh a microbatch by what "
            "its loss is a mean over.");
  StepTotals step{.total_weight = total[kWeight],
                  .num_tokens = static_cast<std::int64_t>(total[kTokens]),
                  .numbers = {total + kNumbers, total + kNumbers + pending.num_numbers}};
  if (const std::int64_t begin = kNumbers + pending.num_numbers; begin < totals.numel()) {
    step.layer_norms = named_layer_norms(total + begin, step.total_weight);
  }
  if (step.total_weight == 0.0) {
    step.is_usable = false;
    step.reason = "its total loss weight is 0";
    return step;
  }
  step.loss = total[kLoss] / step.total_weight;
  step.norm = total[kNorm] / std::abs(step.total_weight);
  step.is_finite = step.is_usable = std::isfinite(step.loss) && std::isfinite(step.norm);
  step.grad_scale = total[kScale];
  if (!step.is_finite) {
    const Cause cause = cause_of_non_finite(step.loss);
    step.reason = cat("loss ", text_of(step.loss), ", gradient norm ", text_of(step.norm), cause.text);
    step.is_lost = cause.is_parameter;
  }
  step.is_spike = step.is_finite && (step.loss > limits.loss || step.norm > limits.norm);
  if (step.is_spike) {
    step.is_usable = false;
    step.reason = cat("a spike: loss ", text_of(step.loss), ", gradient norm ", text_of(step.norm), ", with limits ",
                      text_of(limits.loss), " and ", text_of(limits.norm), " from earlier steps");
  }
  return step;
}

void GradientManager::refuse_spike(const StepTotals& step, const RankReport& report) const {
  const bool stops = step.is_spike && clipping_.spikes && clipping_.spikes->on_spike == NonFinitePolicy::kStop;
  D9D_CHECK(!stops, StateError, "[loop::gradients] expected no spike",
            report.step ? cat(" in step ", *report.step) : "", ", got ", step.reason,
            ". Continue from a checkpoint with other data or a lower learning rate; "
            "trainer.gradient_clipping.spikes.on_spike = \"skip\" leaves such steps out.");
}

void GradientManager::refuse_non_finite(const StepTotals& step, const RankReport& report) const {
  if (step.is_finite || (clipping_.on_non_finite == NonFinitePolicy::kSkip && !step.is_lost)) return;
  const bool has_trained = report.step.value_or(0) > 0;
  throw StateError(cat(
      "[loop::gradients] expected a finite loss and gradient norm", report.step ? cat(" in step ", *report.step) : "",
      ", got ", step.reason, ". trainer.detect_non_finite = true names the module that computes it first.",
      has_trained ? " A lower learning rate may help." : "",
      step.is_lost ? "" : " trainer.gradient_clipping.on_non_finite = \"skip\" leaves such steps out."));
}

void GradientManager::scale_gradients(const StepTotals& step) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const auto& [name, parameter] : parameters_) {
    at::Tensor& grad = parameter->stored().mutable_grad();
    if (!grad.defined()) continue;
    grad = grad.to(at::toOpMathType(grad.scalar_type()));
    grads.push_back(grad);
  }
  if (!grads.empty()) at::_foreach_mul_(grads, step.grad_scale);
}

StepTotals GradientManager::reduce_and_clip(const RankReport& report) {
  const Pending pending = sum_step(report);
  const StepTotals step = read_step(pending, report.limits);
  refuse_non_finite(step, report);
  refuse_spike(step, report);
  if (step.is_usable) scale_gradients(step);
  return step;
}

StepTotals GradientManager::apply(Optimizer& optimizer, double learning_rate, const RankReport& report,
                                  const AroundStep& around) {
  const NamedRange range("gradients and optimizer");
  if (optimizer.scales_gradients() && !around) {
    const Pending pending = sum_step(report);
    optimizer.step(learning_rate, pending.grad_scale);
    tied_.update_copies();
    const StepTotals step = read_step(pending, report.limits);
    if (!step.is_usable) optimizer.forget_step();
    refuse_non_finite(step, report);
    refuse_spike(step, report);
    return step;
  }
  const StepTotals step = reduce_and_clip(report);
  if (!step.is_usable) return step;
  const auto step_optimizer = [&] {
    optimizer.step(learning_rate);
    tied_.update_copies();
  };
  around ? around(step_optimizer) : step_optimizer();
  return step;
}

void GradientManager::reset() {
  for (const auto& reduction : reductions_) reduction->clear();
  weighted_loss_ = at::Tensor();
  total_weight_ = at::Tensor();
  losses_.clear();
  tied_.end_step();
}

void GradientManager::abandon() {
  for (const auto& reduction : reductions_) reduction->abandon();
  reset();
}

void GradientManager::close() {
  for (const auto& reduction : reductions_) reduction->close();
}

GradientManager::Cause GradientManager::cause_of_non_finite(double loss) const {
  nlohmann::json own = {{"microbatch", nullptr}, {"parameter", nullptr}, {"gradient", nullptr}};
  for (std::size_t i = 0; i < losses_.size() && own["microbatch"].is_null(); ++i) {
    const auto& [weighted, weight] = losses_[i];
    if (weight.item<double>() == 0 && !std::isfinite(weighted.item<double>())) own["microbatch"] = i;
  }
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor& grad = parameter->stored().grad();
    if (own["parameter"].is_null() && !is_finite(parameter->stored())) own["parameter"] = name;
    if (grad.defined() && !is_finite(grad)) own["gradient"] = name;
  }
  const std::vector<nlohmann::json> all = all_gather_object(own, ranks_);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i]["microbatch"].is_null()) continue;
    return {cat(": microbatch ", all[i]["microbatch"].dump(), " of rank ", ranks_.ranks()[i],
                " has the weight 0 and a loss that is no number, as a mean over nothing is. Return a loss without a "
                "division by 0 for it, such as the sum over max(1, count)")};
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i]["parameter"].is_null()) continue;
    return {.text = cat(": ", all[i]["parameter"].get<std::string>(), " itself has such values on rank ",
                        ranks_.ranks()[i], ". Look at what it was loaded from, and at what writes it"),
            .is_parameter = true};
  }
  if (!std::isfinite(loss)) return {};  // a non-finite loss makes all gradients non-finite
  // Backward runs from the last layer to the first, and non-finite values spread with it: the last name is nearest to
  // the loss.
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (one->at("gradient").is_string()) {
      return {cat(", nearest to the loss in the gradient of ", one->at("gradient").get<std::string>())};
    }
  }
  return {};
}

}  // namespace d9d
