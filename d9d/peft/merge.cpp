#include "d9d/peft/merge.h"

#include <ranges>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/moe/grouped_linear.h"

namespace d9d {
namespace {

// B A as the weight has it: [out, in], and [groups, in, out].
at::Tensor product_of(const Linear& /*linear*/, const at::Tensor& a, const at::Tensor& b) { return b.matmul(a); }
at::Tensor product_of(const GroupedLinear& /*linear*/, const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); }

void set_values(const ParameterPtr& weight, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  weight->stored().detach().copy_(values);
  update_local({weight});
}

template <class L>
std::function<void()> merge(L& linear) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = linear.weight->stored().detach();
  const auto wide = at::promote_types(weight.scalar_type(), at::kFloat);
  const LowRankAdapter<L> adapter = linear.take_adapter();
  const auto wide_values = [&](const ModulePtr<L>& each) { return each->weight->stored().detach().to(wide); };
  const at::Tensor term = product_of(linear, wide_values(adapter.a), wide_values(adapter.b)) * adapter.scale;
  const at::Tensor original = weight.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  set_values(linear.weight, weight.to(wide) + term);
  return [&linear, adapter, original] {
    set_values(linear.weight, original);
    linear.put_adapter(adapter);
  };
}

template <class L>
void check_whole(const std::string& name, const L& linear) {
  D9D_CHECK(!has_flat_shard(linear.weight->placements()), ConfigError,
            "[peft] expected weights that FSDP has not cut, "
            "got those of '",
            name,
            "': merging them in memory is not built in this version. Merge the model of a job "
            "without data_parallel_shard.");
}

}  // namespace

void MergedPeft::unmerge() {
  for (const auto& undo : std::views::reverse(std::exchange(undo_, {}))) undo();
}

MergedPeft merge_peft(Module& model) {
  std::vector<std::function<void()>> undo;
  std::vector<std::function<void()>> merges;
  std::set<const Module*> seen;
  const auto add = [&](const std::string& name, auto* linear) {
    if (linear == nullptr || !linear->adapter() || !seen.insert(linear).second) return;
    check_whole(name, *linear);
    merges.emplace_back([&undo, linear] { undo.push_back(merge(*linear)); });
  };
  model.for_each_module([&](const std::string& name, Module& module) {
    add(name, dynamic_cast<Linear*>(&module));
    add(name, dynamic_cast<GroupedLinear*>(&module));
  });
  for (const auto& each : merges) each();
  return MergedPeft(std::move(undo));
}

}  // namespace d9d
