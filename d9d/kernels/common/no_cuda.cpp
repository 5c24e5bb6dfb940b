#include "d9d/kernels/common/built_with_cuda.h"

namespace d9d::kernels::detail {

bool is_built_with_cuda() { return false; }

}  // namespace d9d::kernels::detail
