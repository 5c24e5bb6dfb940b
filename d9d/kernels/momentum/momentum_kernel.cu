// Formula: g = scale grad + gd p, u = ub b + ug g (or its sign), b = bd b + bg g, p = pd p - step u.
// Legend:  p parameter, b buffer, the other letters numbers (momentum.h); element types: P of p, G of grad; b is fp32.
// Mapping: one block per chunk of one of many tensors (tensor_chunks.h); a thread updates four elements at a time.
// Numerics: fp32, with explicit fused multiply-adds so that all variants round alike; rounds to nearest.
// Traffic: p and b are read and written once, grad is read once.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/tensor_chunks.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/momentum/momentum_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kPack = 4;
constexpr int kStride = kBlock * kPack;
static_assert(kMomentumChunk % kStride == 0);

// The arrays of a chunk.
template <class P, class G>
struct MomentumChunk {
  P* parameter;
  const G* grad;
  float* buffer;
  int size;
};

__device__ __forceinline__ float sign_of(float x) {
  return isnan(x) ? x : static_cast<float>(x > 0.0F) - static_cast<float>(x < 0.0F);
}

// Updates elements [i, i + kPack) of a chunk, as far as it has them.
template <class P, class G, bool kHasBuffer, bool kIsWhole>
__device__ __forceinline__ void update_pack(const MomentumChunk<P, G>& chunk, int i, float scale,
                                            const MomentumNumbers& numbers) {
  const int count = chunk.size - i;
  const auto old_p = load_vec_partial<P, kPack>(chunk.parameter + i, count, kIsWhole);
  const auto g = load_vec_partial<G, kPack>(chunk.grad + i, count, kIsWhole);
  Vec<float, kPack> old_b = {};
  if constexpr (kHasBuffer) old_b = load_vec_partial<float, kPack>(chunk.buffer + i, count, kIsWhole);
  Vec<P, kPack> p;
  Vec<float, kPack> b;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const float old = widen(old_p.value[j]);
    const float scaled = __fmul_rn(widen(g.value[j]), scale);
    const float gradient = numbers.gradient_decay == 0.0F ? scaled : fmaf(numbers.gradient_decay, old, scaled);
    float update = __fmul_rn(numbers.update_grad, gradient);
    if constexpr (kHasBuffer) {
      update = fmaf(numbers.update_buffer, old_b.value[j], update);
      b.value[j] = fmaf(numbers.buffer_decay, old_b.value[j], __fmul_rn(numbers.buffer_grad, gradient));
    }
    if (numbers.takes_sign) update = sign_of(update);
    p.value[j] = narrow<P>(fmaf(numbers.parameter_decay, old, -__fmul_rn(numbers.step_size, update)));
  }
  store_vec_partial(p, count, kIsWhole, chunk.parameter + i);
  if constexpr (kHasBuffer) store_vec_partial(b, count, kIsWhole, chunk.buffer + i);
}

// P, G: element types of parameter and gradient.
template <class P, class G, bool kHasBuffer>
__global__ __launch_bounds__(kBlock) void momentum(const __grid_constant__ MomentumArgs args) {
  const MomentumNumbers& numbers = args.numbers;
  const float scale =
      static_cast<float>(numbers.grad_factor * (numbers.grad_scale == nullptr ? 1.0 : *numbers.grad_scale));
  if (isnan(scale)) return;
  const TensorChunk found = find_chunk(args.chunks, blockIdx.x);
  const MomentumPointers& tensor = args.tensors[found.tensor];
  const std::int64_t begin = static_cast<std::int64_t>(found.index) * kMomentumChunk;
  const std::int64_t rest = tensor.size - begin;
  const MomentumChunk<P, G> chunk{.parameter = static_cast<P*>(tensor.parameter) + begin,
                                  .grad = static_cast<const G*>(tensor.grad) + begin,
                                  .buffer = kHasBuffer ? tensor.buffer + begin : nullptr,
                                  .size = static_cast<int>(rest < kMomentumChunk ? rest : kMomentumChunk)};
  const bool aligned =
      is_aligned(chunk.parameter) && is_aligned(chunk.grad) && (!kHasBuffer || is_aligned(chunk.buffer));
  const int whole_size = aligned ? chunk.size / kPack * kPack : 0;
  int i = static_cast<int>(threadIdx.x) * kPack;
#pragma unroll 2
  for (; i < whole_size; i += kStride) update_pack<P, G, kHasBuffer, true>(chunk, i, scale, numbers);
#pragma unroll 1
  for (; i < chunk.size; i += kStride) update_pack<P, G, kHasBuffer, false>(chunk, i, scale, numbers);
}

template <class Function>
void with_float_or_bfloat16(Dtype dtype, const Function& function) {
  return dtype == Dtype::kFloat32 ? function(Element<float>()) : function(Element<__nv_bfloat16>());
}

}  // namespace

void d9d_launch_momentum(const MomentumVariant& variant, const MomentumArgs& args, cudaStream_t stream) {
  with_float_or_bfloat16(variant.parameter, [&]<class P>(Element<P>) {
    with_float_or_bfloat16(variant.grad, [&]<class G>(Element<G>) {
      const unsigned blocks = args.chunks.num_chunks();
      if (variant.has_buffer) {
        momentum<P, G, true><<<blocks, kBlock, 0, stream>>>(args);
      } else {
        momentum<P, G, false><<<blocks, kBlock, 0, stream>>>(args);
      }
    });
  });
  check_launch("momentum");
}

}  // namespace d9d::kernels::detail
