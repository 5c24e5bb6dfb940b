#include "d9d/blocks/positional/rope_tables.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// base^(2i / D) for i in [0, D / 2).
at::Tensor position_frequencies(double base, std::int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  return at::pow(base, exponents);
}

double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double yarn_attention_scale(const YarnRopeScalingConfig& yarn) {
  if (yarn.attention_factor) return *yarn.attention_factor;
  if (yarn.mscale && yarn.mscale_all_dim) {
    return yarn_mscale(yarn.factor, *yarn.mscale) / yarn_mscale(yarn.factor, *yarn.mscale_all_dim);
  }
  return yarn_mscale(yarn.factor, 1.0);
}

struct Frequencies {
  const RopeFrequenciesRequest& request;

  [[nodiscard]] at::Tensor unscaled() const {
    return 1.0 / position_frequencies(static_cast<double>(request.base), request.head_dim);
  }

  RopeFrequencies operator()(const LinearRopeScalingConfig& linear) const { return {unscaled() / linear.factor}; }

  RopeFrequencies operator()(const NtkRopeScalingConfig& ntk) const {
    D9D_CHECK(request.head_dim > 2, ConfigError, "[blocks::rope] expected head_dim > 2 for ntk scaling, got ",
              request.head_dim, ".");
    const auto dim = static_cast<double>(request.head_dim);
    const double base = static_cast<double>(request.base) * std::pow(ntk.factor, dim / (dim - 2.0));
    return {1.0 / position_frequencies(base, request.head_dim)};
  }

  RopeFrequencies operator()(const YarnRopeScalingConfig& yarn) const {
    const auto dim = static_cast<double>(request.head_dim);
    // The dim whose angle completes `rotations` turns over the original context.
    const auto dim_of = [&](double rotations) {
      const double context = static_cast<double>(yarn.original_max_position_embeddings);
      return dim * std::log(context / (rotations * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(static_cast<double>(request.base)));
    };
    double low = dim_of(yarn.beta_fast);
    double high = dim_of(yarn.beta_slow);
    if (yarn.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1.0);
    if (low == high) high += 1e-3;  // a step instead of a division by zero
    const at::Tensor index = at::arange(request.head_dim / 2, at::kFloat);
    const at::Tensor kept = 1.0 - ((index - low) / (high - low)).clamp(0, 1);  // 1 keeps a frequency, 0 divides it
    const at::Tensor frequencies = position_frequencies(static_cast<double>(request.base), request.head_dim);
    return {1.0 / (yarn.factor * frequencies) * (1.0 - kept) + 1.0 / frequencies * kept, yarn_attention_scale(yarn)};
  }

  RopeFrequencies operator()(const Llama3RopeScalingConfig& llama3) const {
    const auto context = static_cast<double>(llama3.original_max_position_embeddings);
    const at::Tensor inverse = unscaled();
    // Multiplies by the reciprocal, which is what Python's scalar / tensor computes: C++ divides, and rounds
    // differently.
    const at::Tensor wavelength = inverse.reciprocal() * (2.0 * std::numbers::pi);
    const double long_wave = context / llama3.low_freq_factor;
    const double short_wave = context / llama3.high_freq_factor;
    const at::Tensor scaled = at::where(wavelength > long_wave, inverse / llama3.factor, inverse);
    const at::Tensor smooth = (wavelength.reciprocal() * context - llama3.low_freq_factor) /
                              (llama3.high_freq_factor - llama3.low_freq_factor);
    const at::Tensor blended = (1.0 - smooth) * scaled / llama3.factor + smooth * scaled;
    const at::Tensor is_between =
        wavelength.lt(short_wave).logical_not().logical_and(wavelength.gt(long_wave).logical_not());
    return {at::where(is_between, blended, scaled)};
  }

  RopeFrequencies operator()(const LongRopeScalingConfig& longrope) const {
    const bool is_long = request.max_position_ids > longrope.original_max_position_embeddings;
    const std::vector<double>& factors = is_long ? longrope.long_factor : longrope.short_factor;
    D9D_CHECK(std::ssize(factors) == request.head_dim / 2, ConfigError, "[blocks::rope] expected ",
              request.head_dim / 2, " longrope factors (head_dim / 2), got ", factors.size(), ".");
    const auto context = static_cast<double>(longrope.original_max_position_embeddings);
    const double factor = longrope.factor.value_or(static_cast<double>(request.max_position_ids) / context);
    const double scale = factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(context));
    const at::Tensor divisors = at::tensor(factors, at::kDouble).to(at::kFloat);
    return {1.0 / (divisors * position_frequencies(static_cast<double>(request.base), request.head_dim)),
            longrope.attention_factor.value_or(scale)};
  }
};

}  // namespace

RopeFrequencies rope_frequencies(const RopeFrequenciesRequest& request) {
  D9D_CHECK(request.head_dim > 0 && request.head_dim % 2 == 0, ConfigError,
            "[blocks::rope] expected a positive even head_dim, got ", request.head_dim, ".");
  const Frequencies frequencies{request};
  return request.scaling ? std::visit(frequencies, *request.scaling) : RopeFrequencies{frequencies.unscaled()};
}

at::Tensor rope_table(RopeTable table, const RopeFrequencies& frequencies, std::int64_t max_position_ids,
                      kernels::RotaryStyle style, at::ScalarType dtype) {
  at::Tensor half =
      at::arange(max_position_ids, at::kFloat).unsqueeze(1) * frequencies.inverse.unsqueeze(0);  // [P, D / 2]
  table == RopeTable::kCos ? half.cos_() : half.sin_();
  if (frequencies.attention_scale != 1.0) half.mul_(frequencies.attention_scale);
  half = half.to(dtype);
  return style == kernels::RotaryStyle::kHalf ? at::cat({half, half}, 1) : at::repeat_interleave(half, 2, 1);
}

}  // namespace d9d
