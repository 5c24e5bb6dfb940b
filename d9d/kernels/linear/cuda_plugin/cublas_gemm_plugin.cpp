#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <mutex>
#include <optional>

#include "d9d/kernels/linear/cublas_gemm.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::size_t kMaxProducts = 1024;  // per process; bounds the memory if shapes keep changing
constexpr int kRanks = 8;                   // how many of cuBLAS's ranked kernels are examined

bool succeeds(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

// Everything that cuBLAS's choice of kernels depends on.
struct Key {
  int device = 0;
  Dtype dtype{};
  bool is_out_float = false;
  std::array<std::int64_t, 3> sizes{};  // R, C, K
  std::array<std::int64_t, 3> strides{};
  std::array<std::uint32_t, 3> alignments{};
  auto operator<=>(const Key&) const = default;
};

std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return std::min<std::uint32_t>(256, static_cast<std::uint32_t>(address & (~address + 1)));
}

Key key_of(const CublasProductArgs& args) {
  return {.device = args.device,
          .dtype = args.dtype,
          .is_out_float = args.is_out_float,
          .sizes = {args.num_rows, args.num_columns, args.num_terms},
          .strides = {args.x.stride, args.weight.stride, args.out_stride},
          .alignments = {alignment_of(args.x.data), alignment_of(args.weight.data), alignment_of(args.out)}};
}

// A product as described to cuBLAS, whose matrices are column-major: the operands are swapped, so that the weight comes
// first, and the weight is transposed.
struct Product {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

// Whether a kernel writes a tile while it multiplies the next one. On Hopper these are the kernels with custom options
// 1 to 3.
bool writes_beside_products(const cublasLtMatmulAlgo_t& algorithm) {
  std::uint32_t option = 0;
  std::size_t written = 0;
  return succeeds(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &option,
                                                       sizeof option, &written)) &&
         option >= 1 && option <= 3;
}

bool choose_algorithm(cublasLtHandle_t handle, const Key& key, Product& product) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (!succeeds(cublasLtMatmulPreferenceCreate(&preference))) return false;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return succeeds(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  std::array<cublasLtMatmulHeuristicResult_t, kRanks> results{};
  int num_results = 0;
  const bool has_results =
      set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0}) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[1]) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[0]) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignments[2]) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[2]) &&
      succeeds(cublasLtMatmulAlgoGetHeuristic(handle, product.description, product.weight, product.x, product.out,
                                              product.out, preference, kRanks, results.data(), &num_results));
  cublasLtMatmulPreferenceDestroy(preference);
  if (!has_results) return false;
  const auto end = results.begin() + num_results;
  const auto chosen =
      std::find_if(results.begin(), end, [](const auto& result) { return writes_beside_products(result.algo); });
  if (chosen == end) return false;
  product.algorithm = chosen->algo;
  return true;
}

// The description of a product, which is cached. nullopt if cuBLAS has no suitable kernel.
std::optional<Product> describe(cublasLtHandle_t handle, const Key& key) {
  const cudaDataType_t type = key.dtype == Dtype::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
  const auto [rows, columns, terms] = key.sizes;
  const cublasOperation_t transpose = CUBLAS_OP_T;
  Product product;
  const bool is_described =
      succeeds(cublasLtMatmulDescCreate(&product.description, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
      succeeds(cublasLtMatmulDescSetAttribute(product.description, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                              sizeof transpose)) &&
      succeeds(cublasLtMatrixLayoutCreate(&product.weight, type, terms, columns, key.strides[1])) &&
      succeeds(cublasLtMatrixLayoutCreate(&product.x, type, terms, rows, key.strides[0])) &&
      succeeds(cublasLtMatrixLayoutCreate(&product.out, key.is_out_float ? CUDA_R_32F : type, columns, rows,
                                          key.strides[2]));
  if (!is_described || !choose_algorithm(handle, key, product)) return std::nullopt;
  return product;
}

struct Products {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, std::optional<Product>> products;
};

cublasLtHandle_t handle_of(int device, Products& all) {
  const auto found = all.handles.find(device);
  if (found != all.handles.end()) return found->second;
  cublasLtHandle_t handle = nullptr;
  if (!succeeds(cublasLtCreate(&handle))) return nullptr;
  return all.handles.emplace(device, handle).first->second;
}

bool write(const CublasProductArgs& args, CUstream_st* stream) {
  static auto* const products = new Products;  // never destroyed: CUDA may be gone by then
  Products& all = *products;
  const Key key = key_of(args);
  const std::lock_guard lock(all.mutex);
  const cublasLtHandle_t handle = handle_of(args.device, all);
  if (handle == nullptr) return false;
  auto found = all.products.find(key);
  if (found == all.products.end()) {
    if (all.products.size() >= kMaxProducts) return false;
    found = all.products.emplace(key, describe(handle, key)).first;
  }
  if (!found->second) return false;
  const Product& product = *found->second;
  const float one = 1.0F, zero = 0.0F;
  return succeeds(cublasLtMatmul(handle, product.description, &one, args.weight.data, product.weight, args.x.data,
                                 product.x, &zero, args.out, product.out, args.out, product.out, &product.algorithm,
                                 nullptr, 0, stream));
}

}  // namespace
}  // namespace d9d::kernels::detail

extern "C" __attribute__((visibility("default"))) bool d9d_write_cublas_product(
    const d9d::kernels::detail::CublasProductArgs& args, CUstream_st* stream) {
  return d9d::kernels::detail::write(args, stream);
}
