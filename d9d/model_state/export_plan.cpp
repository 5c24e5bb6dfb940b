#include "d9d/model_state/export_plan.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"

namespace d9d {
namespace {

std::vector<ExportUnit> units_of(std::size_t group, const MappedGroup& mapped) {
  ExportUnit all{.group = group, .outputs = {}};
  for (const auto& [name, output] : mapped.outputs) {
    D9D_CHECK(output.spec.mesh.axes().empty(), StateError, "[model_state::write] expected whole outputs, got '", name,
              "' distributed over mesh '", output.spec.mesh.name(), "'. Leave mapper::distribute out.");
    all.outputs.push_back(name);
  }
  if (!mapped.calls.empty()) return {std::move(all)};
  std::vector<ExportUnit> units;
  for (std::string& name : all.outputs) units.push_back({.group = group, .outputs = {std::move(name)}});
  return units;
}

TensorSource described(const std::string& name, const StateSpec& spec) {
  return {.name = name, .dtype = spec.dtype, .shape = spec.shape, .read = {}};
}

}  // namespace

std::vector<ExportShard> plan_export(const std::vector<const MappedGroup*>& groups, std::int64_t max_shard_bytes) {
  D9D_CHECK(!groups.empty(), StateError,
            "[model_state::write] expected at least one tensor to write, got none: no folder of weights is without. ",
            "Check the mapper and the source.");
  std::vector<ExportUnit> units;
  std::vector<std::int64_t> bytes;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (ExportUnit& unit : units_of(group, *groups[group])) {
      bytes.push_back(0);
      for (const std::string& name : unit.outputs) {
        bytes.back() += num_bytes(described(name, groups[group]->outputs.at(name).spec));
      }
      units.push_back(std::move(unit));
    }
  }
  std::vector<ExportShard> shards;
  const std::vector<std::size_t> shard_of_unit = shard_of_each(bytes, max_shard_bytes);
  for (std::size_t i = 0; i < units.size(); ++i) {
    shards.resize(shard_of_unit[i] + 1);
    for (const std::string& name : units[i].outputs) {
      shards.back().tensors.push_back(described(name, groups[units[i].group]->outputs.at(name).spec));
    }
    shards.back().units.push_back(std::move(units[i]));
  }
  return shards;
}

}  // namespace d9d
