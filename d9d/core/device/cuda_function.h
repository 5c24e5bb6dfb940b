// A function of libd9d_cuda.so (cuda_library.h), which is opened when the function is called for the first time.
//
// Example
//   extern "C" void d9d_launch_fill(const FillArgs& args, CUstream_st* stream);  // defined in a .cu file
//   inline constexpr CudaFunction<"d9d_launch_fill", decltype(d9d_launch_fill)> launch_fill;
//   ...
//   launch_fill({.numel = 3}, current_cuda_stream(device));
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "d9d/core/device/cuda_library.h"

namespace d9d {

// The name of a function, as a template argument.
template <std::size_t kSize>
struct SymbolName {
  consteval SymbolName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }  // NOLINT: "name" converts
  char text[kSize] = {};
};

// Cannot be called in a .cu file: nvcc does not take a C function's type for Result(Arguments...).
template <SymbolName kName, class Signature>
class CudaFunction {};

template <SymbolName kName, class Result, class... Arguments>
class CudaFunction<kName, Result(Arguments...)> {
 public:
  // Throws as cuda_library_symbol() does.
  Result operator()(Arguments... arguments) const {
    static const auto function = reinterpret_cast<Result (*)(Arguments...)>(cuda_library_symbol(kName.text));
    return function(std::forward<Arguments>(arguments)...);
  }
};

}  // namespace d9d
