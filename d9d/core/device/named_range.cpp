#include "d9d/core/device/named_range.h"

#include <utility>

#include <ATen/record_function.h>

namespace d9d {

bool NamedRange::is_traced() { return at::hasCallbacks(); }

void NamedRange::begin(std::string name) {
  const auto record = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (record->isActive()) record->before(std::move(name));
  record_ = record;
}

}  // namespace d9d
