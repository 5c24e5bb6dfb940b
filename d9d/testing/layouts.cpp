#include "d9d/testing/layouts.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::testing {
namespace {

Trained train_on(const DeviceMeshParameters& mesh, const std::function<Trained(const DistContext&)>& train,
                 const RankOptions& options) {
  Trained result;
  run_ranks(
      mesh,
      [&](const DistContext& context) {
        Trained own = train(context);
        if (!context.is_main_process()) return;
        for (auto& [name, tensor] : own.parameters) tensor = tensor.detach().clone();  // the model may end here
        result = std::move(own);
      },
      options);
  return result;
}

// Describes the difference; empty if there is none.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (actual.sizes() != expected.sizes()) return cat("shape ", actual.sizes(), ", on one rank ", expected.sizes());
  if (actual.numel() == 0) return "";
  const at::Tensor wide = expected.to(at::kCPU, at::kDouble);
  const auto largest = (actual.to(at::kCPU, at::kDouble) - wide).abs().max().item<double>();
  const double scale = std::max(wide.abs().max().item<double>(), 1e-30);
  if (largest / scale <= tolerance) return "";  // NaN is a difference
  return cat("differs by ", largest, " where the largest value is ", scale);
}

at::Tensor as_tensor(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

}  // namespace

std::string layout_difference(const DeviceMeshParameters& mesh, const std::function<Trained(const DistContext&)>& train,
                              const LayoutOptions& options) {
  const Trained expected = train_on({}, train, options.ranks);
  const Trained actual = train_on(mesh, train, options.ranks);
  std::string text;
  const auto note = [&](const std::string& name, const std::string& fault) {
    if (!fault.empty()) text += cat(text.empty() ? "" : "\n", name, ": ", fault);
  };
  note("losses", difference(as_tensor(actual.losses), as_tensor(expected.losses), options.tolerance));
  for (const auto& [name, tensor] : expected.parameters) {
    const auto found = actual.parameters.find(name);
    note(name, found == actual.parameters.end() ? "missing" : difference(found->second, tensor, options.tolerance));
  }
  for (const auto& [name, tensor] : actual.parameters) {
    if (!expected.parameters.contains(name)) note(name, "not there on one rank");
  }
  return text;
}

}  // namespace d9d::testing
