#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/stochastic/copy_stochastic_impl.h"
#include "d9d/kernels/stochastic/stochastic_rounding.h"

namespace d9d::kernels::detail {
namespace {

c10::BFloat16 rounded(float value, std::uint32_t noise) {
  return {static_cast<std::uint16_t>(stochastic_bits(value, noise) >> 16), c10::BFloat16::from_bits()};
}

}  // namespace

void round_stochastically(const float* from, std::int64_t size, std::int64_t first, RandomStream stream,
                          const ElementRows& rows, c10::BFloat16* to) {
  std::int64_t i = 0;
  while (i < size) {  // one block of random numbers at a time, up to the end of the row
    const std::int64_t element = rows[first + i];
    const std::int64_t position = element % kNoisesPerBlock;
    std::int64_t count = std::min(kNoisesPerBlock - position, size - i);
    if (!rows.is_one_row()) count = std::min(count, rows.row_size - (rows.begin + first + i) % rows.row_size);
    const PhiloxWords block = noise_block(stream, element / kNoisesPerBlock);
    for (std::int64_t j = 0; j < count; ++j) to[i + j] = rounded(from[i + j], noise_in_block(block, position + j));
    i += count;
  }
}

void copy_stochastic_cpu(const StochasticCopy& copy) {
  const auto* from = copy.source.const_data_ptr<float>();
  auto* to = copy.target.mutable_data_ptr<c10::BFloat16>();
  at::parallel_for(0, copy.target.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    round_stochastically(from + begin, end - begin, begin, copy.stream, copy.rows, to + begin);
  });
  copy.target.unsafeGetTensorImpl()->bump_version();
}

}  // namespace d9d::kernels::detail
