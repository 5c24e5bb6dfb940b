#include <array>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"
#include "d9d/kernels/device/tile_order.h"
#include "d9d/kernels/grouped_mm/grouped_gemm_kernel.h"
#include "d9d/kernels/grouped_mm/grouped_mm_impl.h"

namespace d9d::kernels::detail {
namespace {

void check_groups(const at::Tensor& offsets) {
  D9D_ASSERT(offsets.size(0) - 1 <= persistent_gemm::kMaxGroups, "kernels for ", persistent_gemm::kMaxGroups,
             " groups, not ", offsets.size(0) - 1);
}

// The counter from which clusters take tiles. The caller holds it until the kernel is launched, because the allocator
// may give memory that is freed earlier to the next allocation.
at::Tensor new_tile_counter(const at::Tensor& offsets) { return at::empty({1}, offsets.options()); }

void launch(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y, const at::Tensor& offsets) {
  const at::Tensor tile_counter = new_tile_counter(offsets);
  launch_grouped_gemm_wgrad({.num_rows = x.size(0),
                             .num_groups = static_cast<int>(out.size(0)),
                             .in = static_cast<int>(x.size(1)),
                             .out_features = static_cast<int>(y.size(1)),
                             .x = x.const_data_ptr(),
                             .y = y.const_data_ptr(),
                             .offsets = offsets.const_data_ptr<std::int32_t>(),
                             .tile_counter = tile_counter.mutable_data_ptr<std::int32_t>(),
                             .out = out.mutable_data_ptr(),
                             .out_is_float = out.scalar_type() == at::kFloat},
                            current_cuda_stream(x.device()));
}

}  // namespace

bool has_grouped_mm_kernels(const at::Tensor& x, std::int64_t num_groups) {
  return x.scalar_type() == at::kBFloat16 && num_groups <= persistent_gemm::kMaxGroups && has_cuda_kernels(x);
}

at::Tensor grouped_gemm_cuda(at::ArrayRef<at::Tensor> x, at::ArrayRef<at::Tensor> w, const at::Tensor& offsets) {
  check_groups(offsets);
  const at::Tensor& like = x.front();
  const std::int64_t num_rows = like.size(0), num_features = w.front().size(2);
  const c10::DeviceGuard guard(like.device());
  if (num_rows == 0 || w.front().numel() == 0) return at::zeros({num_rows, num_features}, like.options());
  GroupedGemmArgs args{.num_rows = num_rows,
                       .num_groups = static_cast<int>(w.front().size(0)),
                       .num_terms = static_cast<int>(x.size()),
                       .offsets = offsets.const_data_ptr<std::int32_t>()};
  std::array<at::Tensor, 2> rows, weights;
  for (std::size_t i = 0; i < x.size(); ++i) {
    rows.at(i) = aligned(pad_rows(x[i]));
    weights.at(i) = aligned(pad_weights(w[i]));
  }
  args.weights_are_transposed = !weights[0].is_contiguous();
  if (x.size() == 2 && weights[1].is_contiguous() == args.weights_are_transposed) {
    for (at::Tensor& weight : weights) weight = weight.contiguous();
    args.weights_are_transposed = false;
  }
  for (std::size_t i = 0; i < x.size(); ++i)
    args.terms[i] = {.rows = rows.at(i).const_data_ptr(), .weights = weights.at(i).const_data_ptr()};
  args.inner = static_cast<int>(rows[0].size(1));
  args.features = static_cast<int>(weights[0].size(2));
  at::Tensor out = at::empty({num_rows, args.features}, like.options());
  const at::Tensor tile_counter = new_tile_counter(offsets);
  args.tile_counter = tile_counter.mutable_data_ptr<std::int32_t>();
  args.out = out.mutable_data_ptr();
  launch_grouped_gemm(args, current_cuda_stream(like.device()));
  return out.narrow(1, 0, num_features).contiguous();
}

at::Tensor grouped_gemm_wgrad_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& offsets) {
  at::Tensor out = at::empty({offsets.size(0) - 1, x.size(1), y.size(1)}, x.options());
  write_grouped_gemm_wgrad_cuda(out, x, y, offsets);
  return out;
}

void write_grouped_gemm_wgrad_cuda(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
                                   const at::Tensor& offsets) {
  check_groups(offsets);
  const c10::DeviceGuard guard(x.device());
  if (out.numel() == 0) return;
  if (x.size(0) == 0) {
    out.zero_();
    return;
  }
  const at::Tensor left = aligned(pad_rows(x)), right = aligned(pad_rows(y));
  if (left.size(1) == x.size(1) && right.size(1) == y.size(1) && out.is_contiguous() && is_aligned(out)) {
    return launch(out, left, right, offsets);
  }
  // The result has padding: compute it in float, and round it where it is copied.
  const at::Tensor padded = at::empty({out.size(0), left.size(1), right.size(1)}, out.options().dtype(at::kFloat));
  launch(padded, left, right, offsets);
  out.copy_(padded.narrow(1, 0, x.size(1)).narrow(2, 0, y.size(1)));
}

}  // namespace d9d::kernels::detail
