#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/router/topk_router.h"

namespace d9d::kernels::detail {
namespace {

// Loops over the experts and keeps best[0 .. top_k) sorted. Writes valid indices even if scores are NaN.
template <class Scalar>
void select_of_token(const Scalar* scores, std::int64_t num_experts, std::int64_t top_k, std::int64_t* best) {
  std::int64_t num_best = 0;
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    std::int64_t place = num_best;
    while (place > 0 && scores[expert] > scores[best[place - 1]]) --place;
    if (place == top_k) continue;
    num_best = std::min(num_best + 1, top_k);
    std::copy_backward(best + place, best + num_best - 1, best + num_best);
    best[place] = expert;
  }
}

}  // namespace

at::Tensor select_top_k_cpu(const at::Tensor& scores, std::int64_t top_k) {
  const auto dense_scores = scores.contiguous();
  const auto num_experts = scores.size(1);
  auto indices = at::empty({scores.size(0), top_k}, scores.options().dtype(at::kLong));
  auto* best = indices.mutable_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "select_top_k_cpu", [&] {
    const auto* score = dense_scores.const_data_ptr<scalar_t>();
    at::parallel_for(0, scores.size(0), 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        select_of_token(score + t * num_experts, num_experts, top_k, best + t * top_k);
      }
    });
  });
  return indices;
}

}  // namespace d9d::kernels::detail
