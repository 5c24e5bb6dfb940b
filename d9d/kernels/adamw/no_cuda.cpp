#include "d9d/kernels/adamw/adamw_kernel.h"
#include "d9d/kernels/common/refuse_without_cuda.h"

namespace d9d::kernels::detail {

std::int64_t adamw_pack_size(const AdamWVariant& /*variant*/) { refuse_without_cuda("adamw"); }
std::int64_t adamw_chunk_size(const AdamWVariant& /*variant*/) { refuse_without_cuda("adamw"); }
void launch_adamw(const AdamWVariant& /*variant*/, const AdamWArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("adamw");
}

}  // namespace d9d::kernels::detail
