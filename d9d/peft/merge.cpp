#include "d9d/peft/merge.h"

#include <algorithm>
#include <map>
#include <memory>
#include <ranges>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/magnitude.h"
#include "d9d/peft/adapter_site.h"
#include "d9d/peft/merged_on_the_way.h"

namespace d9d {
namespace {

void set_values(const ParameterPtr& weight, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  weight->stored().detach().copy_(values);
  update_local({weight});
}

at::Tensor wide(const ParameterPtr& weight) {
  const at::Tensor stored = weight->stored().detach();
  return stored.to(at::promote_types(stored.scalar_type(), at::kFloat));
}

// This rank's part of W + scale * B A of the index-th weight.
at::Tensor sum_of(const LowRankTerms& terms, std::size_t index) {
  return wide(terms.weights[index]) +
         low_rank_term(terms.product, wide(factor_of(terms.a, index)), wide(factor_of(terms.b, index)), terms.scale);
}

// What rows of the sum are multiplied by, [out, 1]: m / |.|. Undefined without magnitudes.
at::Tensor factors_of_rows(const AdapterSite& site) {
  const at::NoGradGuard no_grad;
  const LowRankTerms terms = site.terms();
  if (terms.magnitude == nullptr) return {};
  const at::Tensor norms = norms_of_rows(sum_of(terms, 0).square().sum(1), *terms.weights[0]);
  return (wide(terms.magnitude) / norms).unsqueeze(1);
}

std::function<void()> merge(const std::string& name, AdapterSite& site, const at::Tensor& factors) {
  const at::NoGradGuard no_grad;
  const LowRankTerms terms = site.terms();
  std::vector<std::pair<ParameterPtr, at::Tensor>> originals;
  std::vector<at::Tensor> sums;
  for (std::size_t i = 0; i < terms.weights.size(); ++i) {
    const ParameterPtr& weight = terms.weights[i];
    originals.emplace_back(weight, weight->stored().detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    const at::Tensor sum = sum_of(terms, i);
    sums.push_back(factors.defined() ? sum * factors : sum);
    check_merged_fits(name, sums[i], weight->local().scalar_type());
  }
  for (std::size_t i = 0; i < terms.weights.size(); ++i) set_values(terms.weights[i], sums[i]);
  return [originals, put_back = site.take()] {
    for (const auto& [weight, original] : originals) set_values(weight, original);
    put_back();
  };
}

using Readers = std::map<const Parameter*, std::set<const Module*>>;

// The modules that have each parameter as their own. A module with unnamed children shows theirs as its own, and is
// left out.
Readers readers_of(Module& model) {
  Readers readers;
  model.for_each_module([&](const std::string&, const Module& module) {
    if (std::ranges::any_of(module.named_children(), [](const auto& child) { return child.first.empty(); })) return;
    for (const auto& [name, parameter] : module.named_parameters()) {
      if (name.find('.') == std::string::npos) readers[parameter.get()].insert(&module);
    }
  });
  return readers;
}

void check_can_be_merged(const std::string& name, const AdapterSite& site, const Readers& readers) {
  D9D_CHECK(!has_flat_shard(site.bases().front()->placements()), ConfigError,
            "[peft] expected weights that FSDP has not cut, "
            "got those of '",
            name,
            "': merging them in memory is not built in this version. Merge the model of a job "
            "without data_parallel_shard.");
  const bool is_shared = std::ranges::any_of(site.bases(), [&](const ParameterPtr& base) {
    const auto found = readers.find(base.get());
    return found != readers.end() && found->second.size() > 1;
  });
  D9D_CHECK(!site.is_tied() && !is_shared, ConfigError, "[peft] expected weights that one module reads, got those of '",
            name, "', which are tied: merging the adapter of one in memory would change the other. ",
            "Compute with the adapter, or build the model untied.");
}

}  // namespace

void MergedPeft::unmerge() {
  for (const auto& undo : std::views::reverse(std::exchange(undo_, {}))) undo();
}

MergedPeft merge_peft(Module& model) {
  std::vector<std::pair<std::string, std::unique_ptr<AdapterSite>>> sites;
  std::set<const Module*> seen;
  const Readers readers = readers_of(model);
  model.for_each_module([&](const std::string& name, Module& module) {
    std::unique_ptr<AdapterSite> site = adapter_site(module);
    if (site == nullptr || !site->has_adapter() || !seen.insert(&module).second) return;
    check_can_be_merged(name, *site, readers);
    sites.emplace_back(name, std::move(site));
  });
  // Norms of rows that are cut are collective, so that they come before what can fail on one rank.
  std::vector<at::Tensor> factors;
  for (const auto& [name, site] : sites) factors.push_back(factors_of_rows(*site));
  std::vector<std::function<void()>> undo;
  try {
    for (std::size_t i = 0; i < sites.size(); ++i) {
      undo.push_back(merge(sites[i].first, *sites[i].second, factors[i]));
    }
  } catch (...) {
    MergedPeft(std::move(undo)).unmerge();
    throw;
  }
  return MergedPeft(std::move(undo));
}

}  // namespace d9d
