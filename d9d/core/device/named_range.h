// Names a range of the host's work in traces of LibTorch's profiler, and the kernels that it launches. Tools that read
// NVTX show it too (nvtx_ranges.h).
//
// Example
//   const NamedRange range("optimizer");
//   const NamedRange of_step([&] { return cat("step ", index); });   // the text is made only while something traces
#pragma once

#include <concepts>
#include <memory>
#include <string>

namespace d9d {

class NamedRange {
 public:
  explicit NamedRange(const char* name) {
    if (is_traced()) begin(name);
  }
  template <std::invocable MakeName>
  explicit NamedRange(const MakeName& make_name) {
    if (is_traced()) begin(make_name());
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  [[nodiscard]] static bool is_traced();
  void begin(std::string name);

  std::shared_ptr<void> record_;  // an at::RecordFunction, whose header is slow to compile
};

}  // namespace d9d
