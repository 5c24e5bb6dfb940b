// A term of low rank that a linear adds to its product: y = x W^T (+ b) + scale * B A dropout(x) (Hu et al., LoRA,
// arXiv:2106.09685). The linear keeps its names: A and B become its children lora_A and lora_B.
//
// Example
//   linear->add_adapter({.rank = 8, .scale = 2.0});        // on the meta device, before parallelize_*()
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "d9d/blocks/regularization/dropout.h"
#include "d9d/modules/module.h"

namespace d9d {

struct LowRankConfig {
  std::int64_t rank = 0;
  double scale = 1.0;    // of the term
  double dropout = 0.0;  // of what A reads, in training
};

// Regular expression of the whole names of the weights of A and B, and whether a name is such a one.
inline constexpr const char* kAdapterParameters = "(?:.*\\.)?lora_[AB]\\.weight";
[[nodiscard]] bool is_adapter_parameter(const std::string& name);

class AdapterDropout final : public Dropout {
 public:
  using Dropout::Dropout;
  // Throws ConfigError: tensor parallelism cuts what A reads in other ways than between blocks.
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;
};

// L: Linear or GroupedLinear.
template <class L>
struct LowRankAdapter {
  ModulePtr<L> a;                     // without bias, initially as any L
  ModulePtr<L> b;                     // without bias, initially 0
  ModulePtr<AdapterDropout> dropout;  // null: none
  double scale = 1.0;

  // The term for x. others: the other arguments of L::forward.
  template <class... Others>
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, const Others&... others) const {
    return from_hidden(a(dropout ? dropout(x) : x, others...), others...);
  }
  // The same from the output of A. Scales that, which is narrow.
  template <class... Others>
  [[nodiscard]] at::Tensor from_hidden(const at::Tensor& hidden, const Others&... others) const {
    return b(hidden.mul(scale), others...);
  }
};

// The base class of L. An adapter comes on the meta device, before parallelize_*(), which lays it out.
template <class L>
class Adaptable : public Module {
 public:
  [[nodiscard]] const std::optional<LowRankAdapter<L>>& adapter() const { return adapter_; }
  // Local. Registers A, B and dropout as children. Throws ConfigError if there is an adapter already.
  void put_adapter(LowRankAdapter<L> adapter) {
    register_module("lora_A", adapter.a);
    register_module("lora_B", adapter.b);
    if (adapter.dropout) register_module("lora_dropout", adapter.dropout);
    adapter_ = std::move(adapter);
  }
  // Local. Removes these children. There must be an adapter.
  [[nodiscard]] LowRankAdapter<L> take_adapter() {
    for (const char* name : {"lora_A", "lora_B", "lora_dropout"}) remove_child(name);
    return *std::exchange(adapter_, std::nullopt);
  }

 protected:
  // Puts the adapter of two new modules in the dtype of the weight.
  void put_new_adapter(const ModulePtr<L>& a, const ModulePtr<L>& b, const LowRankConfig& config,
                       at::ScalarType dtype) {
    a->to(dtype);
    b->to(dtype);
    b->weight->set_init(init::zeros());
    put_adapter({.a = a,
                 .b = b,
                 .dropout = config.dropout == 0.0 ? nullptr : make_module<AdapterDropout>(config.dropout),
                 .scale = config.scale});
  }

 private:
  std::optional<LowRankAdapter<L>> adapter_;
};

}  // namespace d9d
