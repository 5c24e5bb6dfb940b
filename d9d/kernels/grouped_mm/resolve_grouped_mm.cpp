#include "d9d/base/check.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"

namespace d9d::kernels {
namespace {

std::string why_no_own_kernels(const GroupedMMRequest& request) {
  return request.cuda_capability_major == 9 ? "this build has no CUDA kernels"
                                            : "this library's kernels need compute capability 9";
}

GroupedMMChoice choice_of_device(const GroupedMMRequest& request) {
  if (!request.is_cuda) return {GroupedMMBackend::kEager, "no GPU"};
  const auto capability = cat("compute capability ", request.cuda_capability_major);
  if (request.has_own_kernels) return {GroupedMMBackend::kHopper, cat(capability, ", bf16; other types by LibTorch")};
  if (request.cuda_capability_major == 9 || request.cuda_capability_major == 10) {
    return {GroupedMMBackend::kTorch, cat(capability, "; ", why_no_own_kernels(request))};
  }
  return {GroupedMMBackend::kEager, cat(capability, " has no grouped kernel, here or in LibTorch")};
}

// The choice for a preference that `source` states.
struct ResolveGroupedMM {
  const GroupedMMRequest& request;
  const char* source;

  GroupedMMChoice operator()(const TorchGroupedMMConfig&) const {
    return {GroupedMMBackend::kTorch, cat(source, " asks for torch")};
  }
  GroupedMMChoice operator()(const EagerGroupedMMConfig&) const {
    return {GroupedMMBackend::kEager, cat(source, " asks for eager")};
  }
  GroupedMMChoice operator()(const QuackGroupedMMConfig&) const { return choice_instead_of("quack"); }
  GroupedMMChoice operator()(const GroupedGemmGroupedMMConfig&) const { return choice_instead_of("grouped_gemm"); }
  GroupedMMChoice operator()(const HopperGroupedMMConfig&) const {
    if (request.has_own_kernels) return {GroupedMMBackend::kHopper, cat(source, " asks for cutlass")};
    return choice_instead_of("cutlass");
  }

  GroupedMMChoice choice_instead_of(const char* name) const {
    const GroupedMMChoice choice = choice_of_device(request);
    return {choice.backend, cat(source, " asks for ", name, ", which is not built in: ", choice.why)};
  }
};

}  // namespace

GroupedMMRequest grouped_mm_request(c10::Device device) {
  GroupedMMRequest request{.is_cuda = device.is_cuda()};
  if (!request.is_cuda) return request;
  request.cuda_capability_major = cuda_capability_major(device);
  request.has_own_kernels = detail::has_cuda_kernels(device);
  return request;
}

GroupedMMChoice resolve_grouped_mm(const GroupedMMRequest& request) {
  if (request.configured) return std::visit(ResolveGroupedMM{request, "the configuration"}, *request.configured);
  if (request.environment)
    return std::visit(ResolveGroupedMM{request, "D9D_BACKEND_AUTO_GROUPED_MM"}, *request.environment);
  return choice_of_device(request);
}

}  // namespace d9d::kernels
