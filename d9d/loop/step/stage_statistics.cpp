#include "d9d/loop/step/stage_statistics.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {

// Throws StateError unless `own` has the names and sizes of the first call, with which all ranks decode the gathered
// values.
void StageStatistics::check_same(const std::map<std::string, at::Tensor>& own) const {
  constexpr const char* kRule =
      "[loop::statistics] expected the same statistics of a pipeline's stages in each step that is logged, ";
  constexpr const char* kRemedy =
      ". Return it from step_statistics() in each step with one size: NaN where there is nothing to say.";
  const std::vector<Series>& first = series_[static_cast<std::size_t>(stages_.index())];
  for (const Series& each : first) {
    const auto found = own.find(each.name);
    D9D_CHECK(found != own.end(), StateError, kRule, "got none called ", each.name, ", which the first had", kRemedy);
    D9D_CHECK(found->second.numel() == each.size, StateError, kRule, "got ", found->second.numel(), " numbers of ",
              each.name, ", and ", each.size, " in the first", kRemedy);
  }
  for (const auto& [name, value] : own) {
    const bool is_known = std::ranges::find(first, name, &Series::name) != first.end();
    D9D_CHECK(is_known, StateError, kRule, "got ", name, ", which the first had not", kRemedy);
  }
}

std::map<std::string, at::Tensor> StageStatistics::gather(const std::map<std::string, at::Tensor>& own) {
  if (stages_.num_ranks() == 1) return own;
  Communicator& ranks = *stages_.communicator();
  if (series_.empty()) {
    nlohmann::json names = nlohmann::json::array();
    for (const auto& [name, value] : own) names.push_back({name, value.numel()});
    for (const nlohmann::json& of_rank : all_gather_object(names, ranks)) {
      series_.emplace_back();
      for (const auto& each : of_rank)
        series_.back().push_back({.name = each[0].get<std::string>(), .size = each[1].get<std::int64_t>()});
    }
  }
  check_same(own);
  std::int64_t most = 0;
  for (const auto& of_rank : series_) {
    std::int64_t total = 0;
    for (const Series& each : of_rank) total += each.size;
    most = std::max(most, total);
  }
  if (most == 0) return {};
  const at::Tensor values = at::zeros({most}, at::TensorOptions(ranks.device()).dtype(at::kDouble));
  std::int64_t begin = 0;
  for (const auto& [name, value] : own) {
    values.narrow(0, begin, value.numel()).copy_(value.detach().flatten());
    begin += value.numel();
  }
  const std::vector<at::Tensor> all = all_gather(values, ranks);
  std::map<std::string, at::Tensor> result;
  for (std::size_t rank = 0; rank < series_.size(); ++rank) {
    std::int64_t next = 0;
    for (const Series& each : series_[rank]) {
      result.try_emplace(each.name, all[rank].narrow(0, next, each.size));
      next += each.size;
    }
  }
  return result;
}

}  // namespace d9d
