#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_kernel.h"

namespace d9d::kernels::detail {
void launch_check_targets(const CheckTargetsArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_logit_statistics(const LogitStatisticsArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_cross_entropy_loss(const CrossEntropyLossArgs&, CUstream_st*) {
  refuse_without_cuda("linear_cross_entropy");
}
void launch_logit_gradient(const LogitGradientArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_logit_exponentials(const LogitExponentialsArgs&, CUstream_st*) {
  refuse_without_cuda("linear_cross_entropy");
}
void launch_rescale_exponentials(const RescaleExponentialsArgs&, CUstream_st*) {
  refuse_without_cuda("linear_cross_entropy");
}
void launch_finish_rows(const FinishRowsArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_clear_tiles(const ClearTilesArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_scale_rows(const ScaleRowsArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_put_scaled(const PutScaledArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }
void launch_scale(const ScaleArgs&, CUstream_st*) { refuse_without_cuda("linear_cross_entropy"); }

}  // namespace d9d::kernels::detail
