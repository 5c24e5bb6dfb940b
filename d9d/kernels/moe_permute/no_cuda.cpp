#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/moe_permute/moe_permute_kernel.h"

namespace d9d::kernels::detail {
void launch_token_permutation(const TokenPermutationArgs&, CUstream_st*) { refuse_without_cuda("moe_permute"); }
void launch_scatter_tokens(const ScatterTokensArgs&, CUstream_st*) { refuse_without_cuda("moe_permute"); }
void launch_combine_rows(const CombineRowsArgs&, CUstream_st*) { refuse_without_cuda("moe_permute"); }
void launch_combine_rows_backward(const CombineRowsBackwardArgs&, CUstream_st*) { refuse_without_cuda("moe_permute"); }
void launch_indices_to_multihot(const MultihotArgs&, CUstream_st*) { refuse_without_cuda("moe_permute"); }

}  // namespace d9d::kernels::detail
