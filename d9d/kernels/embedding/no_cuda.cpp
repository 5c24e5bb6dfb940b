#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/embedding/embedding_kernel.h"

namespace d9d::kernels::detail {

void launch_add_sorted_rows(const AddSortedRowsArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("embedding_rows");
}

}  // namespace d9d::kernels::detail
