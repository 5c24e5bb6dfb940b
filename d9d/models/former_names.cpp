#include "d9d/models/former_names.h"

#include <string_view>
#include <utility>

namespace d9d {
namespace {

struct FormerPrefix {
  std::string_view parameter;  // within the head
  std::string_view head;       // what stood for "head."
};
constexpr FormerPrefix kFormerPrefixes[] = {
    {"lm_head.", "lm_head."}, {"score.", "cls_head."}, {"projection.", "embedding_head."}};

std::optional<std::string> former_name(std::string_view name, std::string_view head_prefix) {
  if (!name.starts_with(head_prefix)) return std::nullopt;
  const std::string_view parameter = name.substr(head_prefix.size());
  for (const FormerPrefix& former : kFormerPrefixes) {
    if (parameter.starts_with(former.parameter)) return std::string(former.head) + std::string(parameter);
  }
  return std::nullopt;
}

}  // namespace

FindTensor accept_former_head_names(FindTensor find, std::string head_prefix) {
  return [find = std::move(find), head_prefix = std::move(head_prefix)](const std::string& name) {
    std::optional<TensorSource> found = find(name);
    if (found) return found;
    const std::optional<std::string> former = former_name(name, head_prefix);
    return former ? find(*former) : std::nullopt;
  };
}

}  // namespace d9d
