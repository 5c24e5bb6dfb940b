#include "d9d/base/check.h"
#include "d9d/kernels/moe_permute/moe_permute_kernel.h"
#include "d9d/kernels/moe_permute/token_permutation_kernel.h"

namespace d9d::kernels::detail {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("[kernels::moe_permute] expected a build with CUDA, got one without. Build where nvcc is on PATH.");
}

}  // namespace

void launch_token_permutation(const TokenPermutationArgs&, CUstream_st*) { refuse(); }
void launch_scatter_tokens(const ScatterTokensArgs&, CUstream_st*) { refuse(); }
void launch_combine_rows(const CombineRowsArgs&, CUstream_st*) { refuse(); }
void launch_combine_rows_backward(const CombineRowsBackwardArgs&, CUstream_st*) { refuse(); }
void launch_indices_to_multihot(const MultihotArgs&, CUstream_st*) { refuse(); }

}  // namespace d9d::kernels::detail
