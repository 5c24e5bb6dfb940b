#include "d9d/loop/step/tied_parameters.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/modules/stale_values.h"

namespace d9d {
namespace {

using Named = std::map<std::string, std::vector<ParameterPtr>>;  // by name, from each local stage that has it

Named named(const std::vector<std::shared_ptr<Module>>& stages) {
  Named all;
  for (const auto& stage : stages) {
    for (const auto& [name, parameter] : stage->named_parameters()) all[name].push_back(parameter);
  }
  return all;
}

// Collective. Returns, for each parameter that several stages have, the ranks of the pipeline that have it, by name.
std::map<std::string, std::vector<std::size_t>> holders_of_tied(const Named& own, const DeviceMesh& pipeline) {
  nlohmann::json counts = nlohmann::json::object();
  for (const auto& [name, parameters] : own) counts[name] = parameters.size();
  std::map<std::string, std::vector<std::size_t>> holders;
  std::map<std::string, std::size_t> num_stages;
  const std::vector<nlohmann::json> all = all_gather_object(counts, pipeline);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [name, count] : all[rank].items()) {
      holders[name].push_back(rank);
      num_stages[name] += count.get<std::size_t>();
    }
  }
  std::erase_if(holders, [&](const auto& each) { return num_stages.at(each.first) == 1; });
  return holders;
}

std::string description_of(const Parameter& parameter) {
  std::string text = cat(parameter.stored().scalar_type(), " ", at::IntArrayRef(parameter.global_shape()),
                         parameter.requires_grad() ? ", trained" : ", frozen");
  for (std::size_t i = 0; i < parameter.placements().size(); ++i) {
    const MeshAxis& axis = parameter.mesh().axes()[i];
    if (axis.size > 1) text += cat(", ", to_string(parameter.placements()[i]), " over ", axis.name);
  }
  return text;
}

// Collective. Throws the same ConfigError on all ranks if a tied parameter differs between stages.
void check_same(const Named& own, const std::map<std::string, std::vector<std::size_t>>& tied,
                const DeviceMesh& pipeline) {
  nlohmann::json descriptions = nlohmann::json::object();
  for (const auto& [name, holders] : tied) {
    const auto found = own.find(name);
    if (found == own.end()) continue;
    for (const ParameterPtr& parameter : found->second) descriptions[name].push_back(description_of(*parameter));
  }
  std::map<std::string, std::string> first;
  for (const nlohmann::json& of_rank : all_gather_object(descriptions, pipeline)) {
    for (const auto& [name, of_stages] : of_rank.items()) {
      for (const auto& text : of_stages.get<std::vector<std::string>>()) {
        const std::string& expected = first.try_emplace(name, text).first->second;
        D9D_CHECK(text == expected, ConfigError, "[loop::tied_parameters] expected one dtype, shape and layout of ",
                  name, " on all pipeline stages that have it, got ", expected, " and ", text,
                  ". Freeze and shard it alike, in an FSDP unit of its own.");
      }
    }
  }
}

}  // namespace

class TiedParameters::UpdateBetweenSteps final : public ModuleHook {
 public:
  explicit UpdateBetweenSteps(const std::shared_ptr<Copies>& copies) : copies_(copies) {}
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {
    const std::shared_ptr<Copies> copies = copies_.lock();
    if (copies == nullptr || copies->are_in_step) return;
    std::vector<ParameterCopy> stale;
    std::vector<ParameterPtr> written;
    for (const ParameterCopy& each : copies->all) {
      if (!is_stale(each.copy->stored(), each.first->stored())) continue;
      stale.push_back(each);
      written.push_back(each.copy);
    }
    d9d::update_copies(stale);
    update_local(written);
  }
  void after_forward(Module& /*module*/, const TensorRefs& /*outputs*/) override {}

 private:
  std::weak_ptr<Copies> copies_;  // TiedParameters may be destroyed before the stages
};

TiedParameters::TiedParameters(const DistContext& context, const std::vector<std::shared_ptr<Module>>& stages)
    : copies_(std::make_shared<Copies>(Copies{.all = copies_of(stages)})) {
  for (const auto& stage : stages) {
    const auto parameters = stage->named_parameters();
    const bool has_copies = std::ranges::any_of(copies_->all, [&](const ParameterCopy& each) {
      return std::ranges::any_of(parameters, [&](const auto& own) { return own.second == each.copy; });
    });
    if (has_copies) stage->add_hook(std::make_shared<UpdateBetweenSteps>(copies_));
  }
  const DeviceMesh pipeline = context.mesh(MeshDomain::kRegular).slice({"pp"});
  if (pipeline.num_ranks() == 1 && stages.size() <= 1) return;
  if (context.device().is_meta()) return;  // the other ranks do not exist (meta_rank())
  const Named own = named(stages);
  const auto tied = holders_of_tied(own, pipeline);
  if (tied.empty()) return;
  check_same(own, tied, pipeline);
  const auto own_rank = static_cast<std::size_t>(pipeline.index());
  // By the pipeline ranks that share them. Sorted, so that all ranks create communicators in one order.
  std::map<std::vector<std::size_t>, std::vector<ParameterPtr>> by_holders;
  for (const auto& [name, holders] : tied) {
    names_.push_back(name);
    const auto found = own.find(name);
    if (found == own.end()) continue;
    const ParameterPtr& first = found->second.front();
    if (holders.front() != own_rank) counted_before_.insert(first.get());
    if (holders.size() > 1 && first->requires_grad()) by_holders[holders].push_back(first);
  }
  for (auto& [holders, parameters] : by_holders) {
    RankGroup group{.name = "tied", .traffic = Traffic::kGradients};
    for (const std::size_t holder : holders) group.ranks.push_back(pipeline.ranks()[holder]);
    group.index = std::ranges::find(holders, own_rank) - holders.begin();
    over_ranks_.push_back({.ranks = context.world()->communicator(group), .parameters = std::move(parameters)});
  }
}

void TiedParameters::begin_step() const {
  if (!std::exchange(copies_->are_in_step, true)) update_copies();
}

void TiedParameters::sum_gradients() const {
  end_step();
  const at::NoGradGuard no_grad;
  for (const auto& [first, copy] : copies_->all) {
    if (first->requires_grad()) first->stored().mutable_grad().add_(copy->stored().grad());
  }
  std::vector<Work> sums;
  for (const auto& [ranks, parameters] : over_ranks_) {
    for (const ParameterPtr& parameter : parameters) {
      const at::Tensor& gradient = parameter->stored().grad();
      if (gradient.numel() > 0) sums.push_back(ranks->all_reduce(gradient, ReduceOp::kSum));
    }
  }
  for (Work& sum : sums) sum.wait();
}

}  // namespace d9d
