// Formula: m = m + (1 - beta1) (g - m), v = beta2 v + (1 - beta2) g^2,
//          p = p (1 - lr decay) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps), with g = grad * scale,
//          and g = grad * scale + decay p without the factor (1 - lr decay) if the decay is not decoupled.
// Legend:  p parameter, m exp_avg, v exp_avg_sq, t the step; element types: P of p, S of m and v, G of grad.
// Mapping: one block per chunk of one of many tensors (tensor_chunks.h); a thread updates 16 bytes of the moments at a
//          time.
// Numerics: fp32, with explicit fused multiply-adds so that all variants round alike; results are rounded to nearest,
//          or stochastically with random numbers that depend only on key, step and element.
// Traffic: p, m and v are read and written once, grad is read once.
#include "d9d/kernels/adamw/adamw_kernel.h"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/stochastic/stochastic_rounding.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kPacksPerThread = 8;

// Elements in 16 bytes of the moments. With bf16 moments these are eight, which share a block of random numbers.
template <class S>
constexpr int kPack = 16 / static_cast<int>(sizeof(S));

// square_root() and quotient() have an error of up to 2 ulp if the result is rounded to bfloat16; otherwise they round
// to nearest.
template <class P>
__device__ __forceinline__ float square_root(float x) {
  if constexpr (sizeof(P) == 4) return sqrtf(x);
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}
template <class P>
__device__ __forceinline__ float quotient(float a, float b) {
  if constexpr (sizeof(P) == 4) return a / b;
  float ratio;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(ratio) : "f"(a), "f"(b));
  return ratio;
}

template <class T, bool kRounds, NoiseLayout kLayout, int kSize>
__device__ __forceinline__ Vec<T, kSize> narrow_pack(const float (&value)[kSize], RandomStream stream,
                                                     const ElementRows& rows, std::int64_t element,
                                                     std::int64_t first) {
  if constexpr (kRounds && sizeof(T) == 2) {
    return round_pack(value, draw_noise<kLayout, kSize>(stream, rows, element, first));
  } else {
    Vec<T, kSize> result;
#pragma unroll
    for (int i = 0; i < kSize; ++i) result.value[i] = narrow<T>(value[i]);
    return result;
  }
}

// The arrays of a chunk, whose first element is element `begin` of its tensor.
template <class P, class G, class S>
struct AdamWChunk {
  P* parameter;
  const G* grad;
  S* exp_avg;
  S* exp_avg_sq;
  std::int64_t begin;
  int size;
};

// Updates elements [i, i + kPack<S>) of a chunk, as far as it has them. All loads come before any arithmetic.
template <class P, class G, class S, bool kRounds, NoiseLayout kLayout, bool kIsWhole>
__device__ __forceinline__ void update_pack(const AdamWChunk<P, G, S>& chunk, int i, float scale,
                                            const AdamWNumbers& numbers, const AdamWPointers& tensor) {
  constexpr int kSize = kPack<S>;
  const int count = chunk.size - i;
  const auto old_p = load_vec_partial<P, kSize>(chunk.parameter + i, count, kIsWhole);
  const auto g = load_vec_partial<G, kSize>(chunk.grad + i, count, kIsWhole);
  const auto old_m = load_vec_partial<S, kSize>(chunk.exp_avg + i, count, kIsWhole);
  const auto old_v = load_vec_partial<S, kSize>(chunk.exp_avg_sq + i, count, kIsWhole);
  float p[kSize];
  float m[kSize];
  float v[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    // Multiply-adds are fused explicitly, so that every variant of the kernel rounds alike.
    const float scaled = __fmul_rn(widen(g.value[j]), scale);
    const float gradient =
        numbers.gradient_decay == 0.0F ? scaled : fmaf(numbers.gradient_decay, widen(old_p.value[j]), scaled);
    const float old_moment = widen(old_m.value[j]);
    m[j] = fmaf(numbers.weight1, gradient - old_moment, old_moment);
    v[j] = fmaf(numbers.weight2 * gradient, gradient, __fmul_rn(numbers.beta2, widen(old_v.value[j])));
    const float denominator = fmaf(square_root<P>(v[j]), numbers.inverse_correction2, numbers.eps);
    const float update = quotient<P>(numbers.step_size * m[j], denominator);
    p[j] = fmaf(widen(old_p.value[j]), numbers.parameter_decay, -update);
  }
  const std::int64_t first = chunk.begin + i;
  const std::int64_t element = noise_element<kLayout>(tensor.rows, first);
  RandomStream stream{.key = tensor.rounding_key, .step = numbers.rounding_step};
  store_vec_partial(narrow_pack<P, kRounds, kLayout>(p, stream, tensor.rows, element, first), count, kIsWhole,
                    chunk.parameter + i);
  stream.step += 1;
  store_vec_partial(narrow_pack<S, kRounds, kLayout>(m, stream, tensor.rows, element, first), count, kIsWhole,
                    chunk.exp_avg + i);
  stream.step += 1;
  store_vec_partial(narrow_pack<S, kRounds, kLayout>(v, stream, tensor.rows, element, first), count, kIsWhole,
                    chunk.exp_avg_sq + i);
}

// P, G, S: element types of parameter, gradient and moments.
template <class P, class G, class S, bool kRounds, NoiseLayout kLayout>
__global__ __launch_bounds__(kBlock, 4) void adamw(const __grid_constant__ AdamWArgs args) {
  constexpr int kSize = kPack<S>;
  constexpr int kStride = kBlock * kSize;
  constexpr int kChunk = kStride * kPacksPerThread;
  const AdamWNumbers& numbers = args.numbers;
  const float scale =
      static_cast<float>(numbers.grad_factor * (numbers.grad_scale == nullptr ? 1.0 : *numbers.grad_scale));
  if (isnan(scale)) return;
  const TensorChunk found = find_chunk(args.chunks, blockIdx.x);
  const AdamWPointers& tensor = args.tensors[found.tensor];
  const std::int64_t begin = static_cast<std::int64_t>(found.index) * kChunk;
  const std::int64_t rest = tensor.size - begin;
  const AdamWChunk<P, G, S> chunk{.parameter = static_cast<P*>(tensor.parameter) + begin,
                                  .grad = static_cast<const G*>(tensor.grad) + begin,
                                  .exp_avg = static_cast<S*>(tensor.exp_avg) + begin,
                                  .exp_avg_sq = static_cast<S*>(tensor.exp_avg_sq) + begin,
                                  .begin = begin,
                                  .size = rest < kChunk ? static_cast<int>(rest) : kChunk};
  const bool aligned = is_aligned(chunk.parameter) && is_aligned(chunk.grad) && is_aligned(chunk.exp_avg) &&
                       is_aligned(chunk.exp_avg_sq);
  const int whole_size = aligned ? chunk.size / kSize * kSize : 0;
  int i = static_cast<int>(threadIdx.x) * kSize;
#pragma unroll 1
  for (; i < whole_size; i += kStride) {
    update_pack<P, G, S, kRounds, kLayout, true>(chunk, i, scale, numbers, tensor);
  }
#pragma unroll 1
  for (; i < chunk.size; i += kStride) {
    update_pack<P, G, S, kRounds, kLayout, false>(chunk, i, scale, numbers, tensor);
  }
}

template <class P, class G, class S, bool kRounds, NoiseLayout kLayout>
void launch(const AdamWArgs& args, cudaStream_t stream) {
  adamw<P, G, S, kRounds, kLayout><<<args.chunks.num_chunks(), kBlock, 0, stream>>>(args);
}

template <class P, class G, class S>
void launch_rounding(NoiseLayout layout, const AdamWArgs& args, cudaStream_t stream) {
  switch (layout) {
    case NoiseLayout::kOneRow:
      return launch<P, G, S, true, NoiseLayout::kOneRow>(args, stream);
    case NoiseLayout::kRows:
      return launch<P, G, S, true, NoiseLayout::kRows>(args, stream);
    case NoiseLayout::kScattered:
      return launch<P, G, S, true, NoiseLayout::kScattered>(args, stream);
  }
}

template <class Function>
void with_float_or_bfloat16(Dtype dtype, const Function& function) {
  return dtype == Dtype::kFloat32 ? function(Element<float>()) : function(Element<__nv_bfloat16>());
}

}  // namespace

std::int64_t d9d_adamw_pack_size(const AdamWVariant& variant) {
  return variant.moments == Dtype::kBFloat16 ? kPack<__nv_bfloat16> : kPack<float>;
}
std::int64_t d9d_adamw_chunk_size(const AdamWVariant& variant) {
  return d9d_adamw_pack_size(variant) * kBlock * kPacksPerThread;
}

void d9d_launch_adamw(const AdamWVariant& variant, const AdamWArgs& args, cudaStream_t stream) {
  with_float_or_bfloat16(variant.grad, [&]<class G>(Element<G>) {
    if (variant.rounds_stochastically) {
      with_float_or_bfloat16(variant.moments, [&]<class S>(Element<S>) {
        launch_rounding<__nv_bfloat16, G, S>(variant.layout, args, stream);
      });
    } else {
      with_float_or_bfloat16(variant.parameter, [&]<class P>(Element<P>) {
        launch<P, G, float, false, NoiseLayout::kOneRow>(args, stream);
      });
    }
  });
  check_launch("adamw");
}

}  // namespace d9d::kernels::detail
