#include "d9d/base/check.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"

namespace d9d::kernels {
namespace {

GroupedMMChoice built_kernel_for(GroupedMMKind kind, const char* source, bool is_cuda) {
  const auto foreign = [&](const char* name) {
    return is_cuda ? GroupedMMChoice{GroupedMMBackend::kTorch,
                                     cat(source, " asks for ", name, ", which runs on LibTorch's grouped kernel")}
                   : GroupedMMChoice{GroupedMMBackend::kEager,
                                     cat(source, " asks for ", name, ", which without a GPU runs on the eager loop")};
  };
  switch (kind) {
    case GroupedMMKind::kTorch:
      return {GroupedMMBackend::kTorch, cat(source, " asks for torch")};
    case GroupedMMKind::kEager:
      return {GroupedMMBackend::kEager, cat(source, " asks for eager")};
    case GroupedMMKind::kQuack:
      return foreign("quack");
    case GroupedMMKind::kGroupedGemm:
      return foreign("grouped_gemm");
    case GroupedMMKind::kCutlass:
      return foreign("cutlass");
  }
  throw InternalError("[kernels::resolve_grouped_mm] unknown kind");
}

}  // namespace

GroupedMMChoice resolve_grouped_mm(const GroupedMMRequest& request) {
  if (request.configured) return built_kernel_for(*request.configured, "the configuration", request.is_cuda);
  if (request.environment) {
    return built_kernel_for(*request.environment, "D9D_BACKEND_AUTO_GROUPED_MM", request.is_cuda);
  }
  if (!request.is_cuda) return {GroupedMMBackend::kEager, "no GPU"};
  const auto capability = cat("compute capability ", request.cuda_capability_major);
  if (request.cuda_capability_major == 9 || request.cuda_capability_major == 10) {
    return {GroupedMMBackend::kTorch, capability};
  }
  return {GroupedMMBackend::kEager, cat(capability, " has no grouped kernel in LibTorch")};
}

}  // namespace d9d::kernels
