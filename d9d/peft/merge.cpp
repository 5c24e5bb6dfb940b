#include "d9d/peft/merge.h"

#include <memory>
#include <ranges>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/peft/adapter_site.h"

namespace d9d {
namespace {

void set_values(const ParameterPtr& weight, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  weight->stored().detach().copy_(values);
  update_local({weight});
}

std::function<void()> merge(AdapterSite& site) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> terms = site.terms();
  std::vector<std::pair<ParameterPtr, at::Tensor>> originals;
  const std::vector<ParameterPtr> bases = site.bases();
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const at::Tensor weight = bases[i]->stored().detach();
    originals.emplace_back(bases[i], weight.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    set_values(bases[i], weight.to(terms[i].scalar_type()) + terms[i]);
  }
  return [originals, put_back = site.take()] {
    for (const auto& [weight, original] : originals) set_values(weight, original);
    put_back();
  };
}

void check_can_be_merged(const std::string& name, const AdapterSite& site) {
  D9D_CHECK(!has_flat_shard(site.bases().front()->placements()), ConfigError,
            "[peft] expected weights that FSDP has not cut, "
            "got those of '",
            name,
            "': merging them in memory is not built in this version. Merge the model of a job "
            "without data_parallel_shard.");
  D9D_CHECK(!site.is_tied(), ConfigError, "[peft] expected weights that one module reads, got those of '", name,
            "', an embedding and a head that are tied: merging the adapter of one in memory would change the other. "
            "Compute with the adapter, or build the model untied.");
}

}  // namespace

void MergedPeft::unmerge() {
  for (const auto& undo : std::views::reverse(std::exchange(undo_, {}))) undo();
}

MergedPeft merge_peft(Module& model) {
  std::vector<std::unique_ptr<AdapterSite>> sites;
  std::set<const Module*> seen;
  model.for_each_module([&](const std::string& name, Module& module) {
    std::unique_ptr<AdapterSite> site = adapter_site(module);
    if (site == nullptr || !site->has_adapter() || !seen.insert(&module).second) return;
    check_can_be_merged(name, *site);
    sites.push_back(std::move(site));
  });
  std::vector<std::function<void()>> undo;
  for (const auto& site : sites) undo.push_back(merge(*site));
  return MergedPeft(std::move(undo));
}

}  // namespace d9d
