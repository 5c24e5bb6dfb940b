#include "d9d/models/legacy_names.h"

#include <string_view>
#include <utility>

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

FindTensor accept_legacy_head_names(FindTensor find, std::string head_prefix) {
  return [find = std::move(find), head_prefix = std::move(head_prefix)](const std::string& name) {
    std::optional<TensorSource> found = find(name);
    if (found) return found;
    const std::optional<std::string> legacy = legacy_name(name, head_prefix);
    return legacy ? find(*legacy) : std::nullopt;
  };
}

}  // namespace d9d
