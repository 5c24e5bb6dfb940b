#include "d9d/base/check.h"
#include "d9d/kernels/adamw/adamw_kernel.h"

namespace d9d::kernels::detail {

[[noreturn]] static void refuse() {
  throw ConfigError("[kernels::adamw] expected a build with nvcc, got one without. Configure with -DD9D_CUDA=ON.");
}

std::int64_t adamw_pack_size(const AdamWVariant& /*variant*/) { refuse(); }
std::int64_t adamw_chunk_size(const AdamWVariant& /*variant*/) { refuse(); }
void launch_adamw(const AdamWVariant& /*variant*/, const AdamWArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

}  // namespace d9d::kernels::detail
