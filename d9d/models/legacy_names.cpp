#include "d9d/models/legacy_names.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

struct LegacyPrefix {
  std::string_view parameter;  // within the head
  std::string_view head;       // 0.16's prefix in place of "head."
};
constexpr LegacyPrefix kLegacyPrefixes[] = {
    {"lm_head.", "lm_head."}, {"score.", "cls_head."}, {"projection.", "embedding_head."}};

std::optional<std::string> legacy_name(std::string_view name, std::string_view head_prefix) {
  if (!name.starts_with(head_prefix)) return std::nullopt;
  const std::string_view parameter = name.substr(head_prefix.size());
  for (const LegacyPrefix& legacy : kLegacyPrefixes) {
    if (parameter.starts_with(legacy.parameter)) return std::string(legacy.head) + std::string(parameter);
  }
  return std::nullopt;
}

}  // namespace

StateMapper own_names(const Module& module, const std::vector<std::string>& names_in_folder,
                      const std::string& head_prefix) {
  const std::set<std::string> present(names_in_folder.begin(), names_in_folder.end());
  std::vector<StateMapper> renames;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const std::optional<std::string> legacy = legacy_name(name, head_prefix);
    const bool is_legacy = !present.contains(name) && legacy && present.contains(*legacy);
    renames.push_back(mapper::rename(is_legacy ? *legacy : name, name));
  }
  return mapper::parallel(std::move(renames));
}

bool has_own_names(const Module& module, const std::vector<std::string>& names_in_folder,
                   const std::string& head_prefix) {
  const std::set<std::string> present(names_in_folder.begin(), names_in_folder.end());
  std::set<std::string> wanted = own_names(module, names_in_folder, head_prefix).inputs();
  std::erase_if(wanted, is_adapter_parameter);
  return std::ranges::includes(present, wanted);
}

std::string present_name(const std::string& name, const std::string& head_prefix) {
  for (const LegacyPrefix& legacy : kLegacyPrefixes) {
    const std::string former = std::string(legacy.head) + std::string(legacy.parameter);
    if (name.starts_with(former)) return head_prefix + name.substr(legacy.head.size());
  }
  return name;
}

}  // namespace d9d
