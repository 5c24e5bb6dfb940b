// Attention by cuDNN's graph API on plain pointers, exported by libd9d_cudnn.so as "d9d_cudnn_graph".
// https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
//
// Legend   B sequences, S queries, Skv keys, Hq and Hkv heads, D features. For packed sequences, S and Skv are the
//          greatest length that a sequence may have, and the sequences are concatenated without padding.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Strides of sequences, heads and positions in elements. Features are contiguous; addresses and strides are aligned to
// 16 bytes.
struct CudnnStrides {
  std::int64_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t position = 0;
  auto operator<=>(const CudnnStrides&) const = default;
};

// What a plan depends on. Making a plan takes up to some tenths of a second.
struct CudnnPlanKey {
  int device = 0;
  bool is_backward = false;
  bool is_packed = false;
  // Packed sequences whose keys have lengths of their own. The last query of each is then aligned with its last key.
  bool has_own_keys = false;
  bool has_sinks = false;  // forward only: a backward finds the sinks in the logsumexp
  Dtype dtype = Dtype::kBFloat16;
  std::int64_t num_sequences = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t num_features = 0;
  std::int64_t num_packed = 0;       // an upper bound of the positions of all packed sequences
  std::int64_t num_packed_keys = 0;  // and of their keys
  CudnnStrides query;
  CudnnStrides key;
  CudnnStrides value;
  CudnnStrides out;         // backward only, of out and its gradient; contiguous for packed sequences
  CudnnStrides grad_value;  // backward only; contiguous for packed sequences
  float scale = 0;
  float softcap = 0;       // 0: none
  std::int64_t left = -1;  // query i sees keys from i + Skv - S - left to i + Skv - S + right; negative: no bound
  std::int64_t right = -1;
  auto operator<=>(const CudnnPlanKey&) const = default;
};

// The tensors of a call. Out, its gradient and the gradients of queries are [B, S, Hq, D]; all but the first two of a
// backward pass are contiguous. The gradients of keys have their shape, contiguous. The logsumexp is to base e, in
// float: [B, Hq, S], or [positions, Hq] for packed sequences. Sinks are float [Hq].
enum class CudnnTensor : std::uint8_t {
  kQuery,
  kKey,
  kValue,
  kOut,
  kLogsumexp,
  kSinks,
  kGradOut,
  kGradQuery,
  kGradKey,
  kGradValue,
  kLengths,       // int32 [B], of packed sequences
  kKeyLengths,    // int32 [B], of keys of their own
  kQueryOffsets,  // these six: int64 [B + 1], the first element of each packed sequence
  kKeyOffsets,
  kValueOffsets,
  kOutOffsets,      // of out, of its gradient and of the gradients of queries
  kGradKeyOffsets,  // of the gradients of keys and values
  kLogsumexpOffsets,
};
constexpr std::size_t kNumCudnnTensors = 18;
using CudnnPointers = std::array<void*, kNumCudnnTensors>;  // null: not needed

struct CudnnPlan {
  CudnnPlanKey key;
  std::int64_t workspace_bytes = 0;  // size of the workspace that run() needs
  std::string error;                 // the reason why cuDNN cannot compute it; empty if it can
  std::shared_ptr<void> graph;       // cuDNN's graph
};
using CudnnPlanPtr = std::shared_ptr<const CudnnPlan>;

struct CudnnGraph {
  // Returns the key's plan and makes it if it is not cached. Some hundred plans are cached; a plan stays valid as long
  // as its pointer is held. May be called from any thread.
  CudnnPlanPtr (*plan)(const CudnnPlanKey& key);
  // Requests that the one background thread makes the plan, and returns without waiting. plan(key) then finds the plan
  // or waits for it. Further requests for a key do nothing. plan() must have made some plan before the first request:
  // cuDNN loads libraries for it, which the process unloads before it destroys what is older than they are. Only if the
  // thread is younger is it joined before they are unloaded.
  void (*prepare)(const CudnnPlanKey& key);
  // Runs the plan on `stream` without synchronising. The current device must be the key's. Returns the error, empty if
  // there is none. A plan that a CUDA graph captures is kept until the process ends, because nothing reports the last
  // replay of the CUDA graph.
  std::string (*run)(const CudnnPlanPtr& plan, const CudnnPointers& pointers, void* workspace, CUstream_st* stream);
};

using GetCudnnGraph = CudnnGraph (*)();

}  // namespace d9d::kernels::detail
