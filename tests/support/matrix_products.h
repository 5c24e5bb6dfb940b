// The matrix products that this thread runs, as LibTorch sees them.
//
// Example
//   const MatrixProducts products;
//   loss.backward();
//   EXPECT_EQ(products.count(/*num_terms=*/num_tokens), 1);       // of a weight's gradient: a sum over tokens
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

namespace d9d::test {

class MatrixProducts {
 public:
  MatrixProducts() {
    by_terms.clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&start).needsInputs(true));
  }
  ~MatrixProducts() { at::removeCallback(handle_); }
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // Those whose elements are sums of so many terms.
  [[nodiscard]] static std::int64_t count(std::int64_t num_terms) {
    const auto found = by_terms.find(num_terms);
    return found == by_terms.end() ? 0 : found->second;
  }
  [[nodiscard]] static std::int64_t count() {
    std::int64_t sum = 0;
    for (const auto& [num_terms, number] : by_terms) sum += number;
    return sum;
  }
  static void clear() { by_terms.clear(); }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    const bool adds = name == "aten::addmm" || name == "aten::addmm_";
    if (!adds && name != "aten::mm") return nullptr;
    const c10::IValue& left = function.inputs()[adds ? 1 : 0];
    if (left.isTensor()) ++by_terms[left.toTensor().size(1)];
    return nullptr;
  }

  // lint: allow(mutable-global): callbacks are plain functions
  // lint: allow(thread-local): callbacks run on the thread that multiplies
  static inline thread_local std::map<std::int64_t, std::int64_t> by_terms = {};
  at::CallbackHandle handle_;
};

}  // namespace d9d::test
