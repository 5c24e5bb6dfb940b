#include "d9d/lr_scheduler/curve.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace d9d {
namespace {

constexpr double kSmallestExponentialValue = 1e-8;  // avoids the logarithm of 0

struct Interpolate {
  double start, end, progress;

  double operator()(const LinearCurveConfig&) const { return start + (end - start) * progress; }
  double operator()(const CosineCurveConfig&) const {
    return end + (start - end) * (1 + std::cos(std::numbers::pi * progress)) / 2;
  }
  double operator()(const PolyCurveConfig& curve) const {
    return start + (end - start) * std::pow(progress, curve.power);
  }
  double operator()(const InverseSqrtCurveConfig&) const {
    const double ratio = start / end;
    return start / std::sqrt(1 + (ratio * ratio - 1) * progress);
  }
  double operator()(const ExponentialCurveConfig&) const {
    const double log_start = std::log(std::max(start, kSmallestExponentialValue));
    const double log_end = std::log(std::max(end, kSmallestExponentialValue));
    return std::exp(log_start + (log_end - log_start) * progress);
  }
};

}  // namespace

double interpolate(const CurveConfig& curve, double start, double end, double progress) {
  return std::visit(Interpolate{start, end, progress}, curve);
}

std::string_view name_of(const CurveConfig& curve) {
  return std::visit([]<class Curve>(const Curve&) { return Curve::kTag.value; }, curve);
}

}  // namespace d9d
