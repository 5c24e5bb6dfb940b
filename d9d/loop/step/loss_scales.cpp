#include "d9d/loop/step/loss_scales.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr const char* kBuilds = "[loop::task] expected TrainTask::build_forward_inputs to return ";

// Returns the weights of one microbatch as a tensor [number of losses], fp64.
at::Tensor row_of(const LossWeights& weights, at::Device device) {
  std::vector<at::Tensor> row;
  for (const auto& [name, weight] : weights) {
    D9D_CHECK(weight.defined() && weight.dim() == 0 && !at::isComplexType(weight.scalar_type()), StateError, kBuilds,
              "a real scalar as loss_weights[\"", name, "\"], got ",
              weight.defined() ? cat(weight.scalar_type(), " of shape ", weight.sizes()) : "an undefined tensor",
              ". Reduce it: to a sum.");
    row.push_back(weight.detach().to(device, at::kDouble, /*non_blocking=*/true));
  }
  return at::stack(row);
}

}  // namespace

at::Tensor marked_if_negative(const at::Tensor& weights) {
  return at::where(weights < 0, -std::numeric_limits<double>::infinity(), weights);
}

std::vector<LossScales> loss_scales(const DistContext& context, const std::vector<LossWeights>& weights) {
  const auto has_same_names = [&](const LossWeights& other) {
    const auto name_of = [](const auto& entry) { return entry.first; };
    return std::ranges::equal(other, weights.front(), {}, name_of, name_of);
  };
  D9D_CHECK(std::ranges::all_of(weights, has_same_names), StateError, kBuilds,
            "loss_weights of the same names for all microbatches, got others. Name each loss always, with the weight 0 "
            "where it is absent.");
  std::vector<LossScales> scales(weights.size());
  if (weights.empty() || weights.front().empty()) return scales;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const LossWeights& each : weights) rows.push_back(row_of(each, context.device()));
  const at::Tensor table = marked_if_negative(at::stack(rows));  // [microbatches, losses]
  at::Tensor totals = at::cat({table.sum(0), at::full({1}, static_cast<double>(table.size(0)), table.options())});
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"dp", "cp"});
  if (ranks.num_ranks() > 1) ranks.communicator()->all_reduce(totals, ReduceOp::kSum).wait();
  const at::Tensor sums = totals.narrow(0, 0, table.size(1));
  const at::Tensor factors = at::where(sums == 0, at::zeros_like(sums), totals[table.size(1)] / sums);
  const at::Tensor weight = at::where(sums.isfinite().all(), (sums > 0).any().to(at::kDouble), sums.sum());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const at::Tensor row = table[static_cast<std::int64_t>(i)] * factors;
    std::int64_t k = 0;
    for (const auto& [name, unused] : weights[i]) scales[i].of.emplace(name, row[k++]);
    scales[i].weight = weight;
  }
  return scales;
}

}  // namespace d9d
