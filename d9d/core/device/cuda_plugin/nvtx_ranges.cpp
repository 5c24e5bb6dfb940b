// An observer of LibTorch's record functions of users, which NamedRange makes: operators are not among them.
#include "d9d/core/device/nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <memory>

#include <ATen/record_function.h>

namespace {

std::unique_ptr<at::ObserverContext> push(const at::RecordFunction& range) {
  nvtxRangePushA(range.name());
  return nullptr;
}

void pop(const at::RecordFunction& /*range*/, at::ObserverContext* /*context*/) { nvtxRangePop(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) void d9d_show_ranges_to_nvtx() {
  static const at::CallbackHandle once =
      at::addGlobalCallback(at::RecordFunctionCallback(&push, &pop).scopes({at::RecordScope::USER_SCOPE}));
  static_cast<void>(once);
}
