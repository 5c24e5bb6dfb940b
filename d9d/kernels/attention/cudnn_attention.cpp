#include <algorithm>
#include <bit>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/attention/attention_kernel.h"
#include "d9d/kernels/attention/cudnn_graph.h"
#include "d9d/kernels/attention/fused_kernels.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"

namespace d9d::kernels::detail {
namespace {

const CudnnGraph& cudnn() {
  static const CudnnGraph graph = reinterpret_cast<GetCudnnGraph>(cudnn_library_symbol("d9d_cudnn_graph"))();
  return graph;
}

void*& pointer(CudnnPointers& pointers, CudnnTensor tensor) { return pointers[static_cast<std::size_t>(tensor)]; }

// Whether strides lead no farther than 32-bit indices reach. Those of values that are columns of a projection do not if
// it has that many elements.
bool is_in_reach(const at::Tensor& x) {
  for (std::int64_t dim = 0; dim < x.dim(); ++dim)
    if (x.size(dim) * x.stride(dim) >= kMaxElements) return false;
  return true;
}

// The tensor itself, or a contiguous copy if it does not allow cuDNN's loads of 16 bytes.
at::Tensor fitting(const at::Tensor& x) {
  const bool fits =
      x.stride(3) == 1 && (x.stride(0) | x.stride(1) | x.stride(2)) % 8 == 0 && is_aligned(x) && is_in_reach(x);
  return fits ? x : x.clone(at::MemoryFormat::Contiguous);
}

// max_length is 0 for dense sequences. For packed sequences offsets say where each begins, and the stride between
// sequences is a formal one.
CudnnStrides strides_of(const at::Tensor& x, std::int64_t max_length) {
  const std::int64_t sequence = max_length > 0 ? max_length * x.stride(1) : x.stride(0);
  return {.sequence = sequence, .head = x.stride(2), .position = x.stride(1)};
}

std::int64_t power_of_two(std::int64_t size) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size)));
}

// A call of cuDNN, with tensors that are aligned as cuDNN requires.
struct Prepared {
  CudnnPlanKey key;
  CudnnPointers pointers = {};
  at::Tensor query, key_heads, value;
  std::vector<at::Tensor> lengths_and_offsets;  // of packed sequences
};

// The offsets of a tensor whose positions are `stride` elements apart.
struct OffsetsOf {
  CudnnTensor offsets;
  std::int64_t stride;
};

// Computes the lengths of the sequences that cu_seqlens bounds, and where they begin in each of some tensors. Those
// without positions in other_cu_seqlens, if that is defined, get the length 0.
void add_offsets(Prepared& call, const at::Tensor& cu_seqlens, const at::Tensor& other_cu_seqlens, CudnnTensor lengths,
                 const std::vector<OffsetsOf>& tensors) {
  const std::int64_t num_sequences = call.key.num_sequences;
  const at::Tensor counts = at::empty({num_sequences}, cu_seqlens.options().dtype(at::kInt));
  const at::Tensor offsets = at::empty({std::ssize(tensors), num_sequences + 1}, cu_seqlens.options().dtype(at::kLong));
  call.lengths_and_offsets.insert(call.lengths_and_offsets.end(), {counts, offsets});
  const at::Tensor begins = cu_seqlens.contiguous();
  const at::Tensor others = other_cu_seqlens.defined() ? other_cu_seqlens.contiguous() : begins;
  PackedOffsetsArgs args{.cu_seqlens = begins.const_data_ptr<std::int32_t>(),
                         .other_cu_seqlens = others.const_data_ptr<std::int32_t>(),
                         .num_sequences = cu_seqlens.numel() - 1,
                         .num_offered = num_sequences,
                         .lengths = counts.mutable_data_ptr<std::int32_t>(),
                         .offsets = offsets.mutable_data_ptr<std::int64_t>(),
                         .num_tensors = static_cast<int>(tensors.size())};
  pointer(call.pointers, lengths) = args.lengths;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    args.strides[i] = tensors[i].stride;
    pointer(call.pointers, tensors[i].offsets) = args.offsets + static_cast<std::int64_t>(i) * (num_sequences + 1);
  }
  launch_packed_offsets(args, current_cuda_stream(cu_seqlens.device()));
}

void add_offsets(Prepared& call, const FusedTensors& tensors) {
  const CudnnPlanKey& key = call.key;
  std::vector<OffsetsOf> of_queries = {{CudnnTensor::kQueryOffsets, key.query.position},
                                       {CudnnTensor::kOutOffsets, key.num_heads * key.num_features},
                                       {CudnnTensor::kLogsumexpOffsets, key.num_heads}};
  const std::vector<OffsetsOf> of_keys = {{CudnnTensor::kKeyOffsets, key.key.position},
                                          {CudnnTensor::kValueOffsets, key.value.position},
                                          {CudnnTensor::kGradKeyOffsets, key.num_kv_heads * key.num_features}};
  if (key.has_own_keys) {
    add_offsets(call, tensors.key_cu_seqlens, at::Tensor(), CudnnTensor::kKeyLengths, of_keys);
  } else {
    of_queries.insert(of_queries.end(), of_keys.begin(), of_keys.end());
  }
  add_offsets(call, tensors.cu_seqlens, tensors.key_cu_seqlens, CudnnTensor::kLengths, of_queries);
}

// Prepares the inputs that both passes have; the key is that of the forward pass.
Prepared prepare(const FusedTensors& tensors, const FusedCall& how) {
  Prepared call;
  call.query = fitting(tensors.query);
  call.key_heads = fitting(tensors.key);
  call.value = fitting(tensors.value);
  const bool is_packed = tensors.cu_seqlens.defined();
  const bool has_own_keys = tensors.key_cu_seqlens.defined();
  const std::int64_t max_length = is_packed ? power_of_two(how.max_length) : 0;
  const std::int64_t max_keys = has_own_keys ? power_of_two(std::max(how.max_key_length, how.max_length)) : max_length;
  call.key = {.device = call.query.device().index(),
              .is_packed = is_packed,
              .has_own_keys = has_own_keys,
              .dtype = dtype_of(call.query),
              .num_sequences = is_packed ? power_of_two(tensors.cu_seqlens.numel() - 1) : call.query.size(0),
              .num_queries = is_packed ? max_length : call.query.size(1),
              .num_keys = is_packed ? max_keys : call.key_heads.size(1),
              .num_heads = call.query.size(2),
              .num_kv_heads = call.key_heads.size(2),
              .num_features = call.query.size(3),
              .num_packed = is_packed ? power_of_two(call.query.size(1)) : 0,
              .num_packed_keys = is_packed ? power_of_two(call.key_heads.size(1)) : 0,
              .query = strides_of(call.query, max_length),
              .key = strides_of(call.key_heads, max_keys),
              .value = strides_of(call.value, max_keys),
              .scale = static_cast<float>(how.scale),
              .softcap = static_cast<float>(how.softcap.value_or(0)),
              .left = how.left.value_or(-1),
              .right = how.right.value_or(-1)};
  pointer(call.pointers, CudnnTensor::kQuery) = const_cast<void*>(call.query.const_data_ptr());
  pointer(call.pointers, CudnnTensor::kKey) = const_cast<void*>(call.key_heads.const_data_ptr());
  pointer(call.pointers, CudnnTensor::kValue) = const_cast<void*>(call.value.const_data_ptr());
  if (is_packed) add_offsets(call, tensors);
  return call;
}

// The number of columns that precede the gradient of values in each row of its buffer. They are room for the gradients
// of queries and keys if values lie behind both in the rows of one projection, otherwise 0. Only sizes can tell that:
// queries and keys are rotated copies, which no longer share the projection's storage.
std::int64_t columns_before_grad_value(const Prepared& call) {
  const CudnnPlanKey& key = call.key;
  const std::int64_t count = (key.num_heads + key.num_kv_heads) * key.num_features;
  const bool is_too_large =
      key.num_sequences * key.num_keys * (count + key.num_kv_heads * key.num_features) >= kMaxElements;
  if (key.is_packed || is_too_large) return 0;
  return columns_before(call.value, /*num_column_dims=*/2) == count ? count : 0;
}

// The key of the backward pass for the inputs of `call`.
CudnnPlanKey backward_key(const Prepared& call) {
  CudnnPlanKey key = call.key;
  key.is_backward = true;
  key.has_sinks = false;
  const std::int64_t row = columns_before_grad_value(call) + key.num_kv_heads * key.num_features;
  key.grad_value = {.sequence = key.num_keys * row, .head = key.num_features, .position = row};
  const std::int64_t position = key.num_heads * key.num_features;
  key.out = {.sequence = key.num_queries * position, .head = key.num_features, .position = position};
  return key;
}

// Out and its gradient as the backward pass reads them: as they are if their strides are equal.
std::pair<at::Tensor, at::Tensor> fitting_out(const at::Tensor& out, const at::Tensor& grad_out, bool is_packed) {
  if (is_packed) return {out.contiguous(), grad_out.contiguous()};
  const at::Tensor first = fitting(out), second = fitting(grad_out);
  if (first.strides() == second.strides()) return {first, second};
  return {first.contiguous(), second.contiguous()};
}

// A contiguous tensor [1, rows, ...] of elements of two or four bytes.
struct Filled {
  at::Tensor rows;
  float value = 0;  // 0 for elements of two bytes
};

// Fills rows whose sequence has nothing in other_cu_seqlens, and, with a window of those queries, keys before all
// windows: cuDNN does not say that it writes them.
void fill_unseen(const at::Tensor& cu_seqlens, const at::Tensor& other_cu_seqlens, std::optional<std::int64_t> left,
                 const std::vector<Filled>& tensors) {
  const at::Tensor begins = cu_seqlens.contiguous(), others = other_cu_seqlens.contiguous();
  FillUnseenArgs args{.cu_seqlens = begins.const_data_ptr<std::int32_t>(),
                      .other_cu_seqlens = others.const_data_ptr<std::int32_t>(),
                      .num_sequences = begins.numel() - 1,
                      .num_rows = tensors.front().rows.size(1),
                      .left = left.value_or(-1)};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& rows = tensors[i].rows;
    args.tensors[i] = {.data = static_cast<std::uint32_t*>(rows.mutable_data_ptr()),
                       .num_words = static_cast<std::int64_t>(rows.nbytes()) / 4 / args.num_rows,
                       .value = std::bit_cast<std::uint32_t>(tensors[i].value)};
  }
  launch_fill_unseen(args, current_cuda_stream(begins.device()));
}

void run(const Prepared& call) {
  const CudnnPlanPtr plan = cudnn().plan(call.key);
  const char* const what = call.key.is_backward ? "the backward pass" : "attention";
  D9D_CHECK(plan->error.empty(), StateError, "[kernels::attention] expected cuDNN to take ", what, " of ",
            call.query.sizes(), ", got '", plan->error, "'. Ask for another backend with D9D_BACKEND_AUTO_SDPA.");
  const at::Tensor workspace = at::empty({plan->workspace_bytes}, call.query.options().dtype(at::kByte));
  const std::string error =
      cudnn().run(plan, call.pointers, workspace.mutable_data_ptr(), current_cuda_stream(call.query.device()));
  D9D_CHECK(error.empty(), StateError, "[kernels::attention] expected cuDNN to run ", what, ", got '", error, "'.");
}

}  // namespace

const char* cudnn_refusal(const FusedTensors& tensors, const FusedCall& call, bool has_sinks) {
  const std::int64_t num_queries = tensors.query.size(1), num_keys = tensors.key.size(1);
  if (!has_cuda_kernels(tensors.query)) return "needs a Hopper GPU and a build with CUDA";
  if (tensors.query.size(3) > 128) return "has too many features a head";
  if (has_sinks && num_queries == 1) return "takes no sinks with a single query";
  if (num_queries == 1 && num_keys == 1) return "takes no single query with a single key";
  if (tensors.cu_seqlens.defined() && (num_queries == 1 || call.max_length == 1)) {
    return "takes no packed sequences of a single query";
  }
  if ((call.left || call.right) && num_queries > num_keys) return "takes no window with more queries than keys";
  return nullptr;
}

FusedForward cudnn_forward(const FusedTensors& tensors, const at::Tensor& sinks, const FusedCall& how,
                           bool backward_follows) {
  const c10::DeviceGuard guard(tensors.query.device());
  Prepared call = prepare(tensors, how);
  const auto float_options = call.query.options().dtype(at::kFloat);
  FusedForward result{.out = at::empty(call.query.sizes(), call.query.options())};
  const std::int64_t batch = call.query.size(0), num_queries = call.query.size(1), num_heads = call.query.size(2);
  result.logsumexp = call.key.is_packed ? at::empty({batch, num_queries, num_heads}, float_options).transpose(1, 2)
                                        : at::empty({batch, num_heads, num_queries}, float_options);
  at::Tensor float_sinks;
  if (sinks.defined()) {
    float_sinks = sinks.to(at::kFloat).contiguous();
    call.key.has_sinks = true;
    pointer(call.pointers, CudnnTensor::kSinks) = float_sinks.mutable_data_ptr();
  }
  if (may_see_nothing(tensors, how) && sinks.defined()) result.logsumexp.copy_(float_sinks.view({1, -1, 1}));
  pointer(call.pointers, CudnnTensor::kOut) = result.out.mutable_data_ptr();
  pointer(call.pointers, CudnnTensor::kLogsumexp) = result.logsumexp.mutable_data_ptr();
  run(call);
  if (may_see_nothing(tensors, how)) {
    std::vector<Filled> filled = {{.rows = result.out}};
    if (!sinks.defined()) filled.push_back({result.logsumexp.transpose(1, 2), static_cast<float>(-kInfiniteLogsumexp)});
    fill_unseen(tensors.cu_seqlens, tensors.key_cu_seqlens, /*left=*/{}, filled);
  }
  if (backward_follows) cudnn().prepare(backward_key(call));
  return result;
}

FusedGradients cudnn_backward(const at::Tensor& grad_out, const FusedTensors& tensors, const FusedForward& forward,
                              const FusedCall& how) {
  const c10::DeviceGuard guard(tensors.query.device());
  Prepared call = prepare(tensors, how);
  call.key = backward_key(call);
  const auto [out, grad] = fitting_out(forward.out, grad_out, call.key.is_packed);
  const at::Tensor logsumexp = call.key.is_packed ? forward.logsumexp.transpose(1, 2).contiguous()  // by positions
                                                  : forward.logsumexp.contiguous();
  if (!call.key.is_packed) call.key.out = strides_of(out, /*max_length=*/0);
  const auto empty_like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  FusedGradients result{
      .query = empty_like(call.query),
      .key = empty_like(call.key_heads),
      .value = empty_behind_columns(call.value, columns_before_grad_value(call), /*num_column_dims=*/2)};
  pointer(call.pointers, CudnnTensor::kOut) = const_cast<void*>(out.const_data_ptr());
  pointer(call.pointers, CudnnTensor::kLogsumexp) = const_cast<void*>(logsumexp.const_data_ptr());
  pointer(call.pointers, CudnnTensor::kGradOut) = const_cast<void*>(grad.const_data_ptr());
  pointer(call.pointers, CudnnTensor::kGradQuery) = result.query.mutable_data_ptr();
  pointer(call.pointers, CudnnTensor::kGradKey) = result.key.mutable_data_ptr();
  pointer(call.pointers, CudnnTensor::kGradValue) = result.value.mutable_data_ptr();
  run(call);
  if (may_see_nothing(tensors, how)) {
    fill_unseen(tensors.cu_seqlens, tensors.key_cu_seqlens, /*left=*/{}, {{.rows = result.query}});
  }
  if (call.key.has_own_keys) {
    fill_unseen(tensors.key_cu_seqlens, tensors.cu_seqlens, how.left, {{.rows = result.key}, {.rows = result.value}});
  }
  return result;
}

}  // namespace d9d::kernels::detail
