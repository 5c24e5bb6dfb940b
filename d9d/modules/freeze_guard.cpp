#include "d9d/modules/freeze_guard.h"

#include "d9d/base/check.h"

namespace d9d {

void check_requires_grad(const std::string& name, const Parameter& parameter, bool requires_grad) {
  D9D_CHECK(parameter.requires_grad() == requires_grad, StateError,
            "[modules] expected requires_grad = ", requires_grad, " of ", name, " as when the job was built, got ",
            parameter.requires_grad(),
            ". Freeze and thaw parameters while the model is built, before parallelize_fsdp(), on all ranks alike; to "
            "thaw a layer later, begin another job from an export of this one.");
}

FreezeGuard::FreezeGuard(const std::vector<std::pair<std::string, ParameterPtr>>& parameters) {
  for (const auto& [name, parameter] : parameters) {
    entries_.push_back({.name = name, .parameter = parameter, .requires_grad = parameter->requires_grad()});
  }
}

void FreezeGuard::check() const {
  for (const Entry& each : entries_) check_requires_grad(each.name, *each.parameter, each.requires_grad);
}

}  // namespace d9d
