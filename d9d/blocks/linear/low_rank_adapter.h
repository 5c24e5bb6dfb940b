// A term of low rank that a linear adds to its product: y = x W^T (+ b) + scale * B A dropout(x) (Hu et al., LoRA,
// arXiv:2106.09685). The linear keeps its names: A and B become its children lora_A and lora_B. Experts, embeddings and
// heads have such terms too.
//
// Example
//   linear->add_adapter({.rank = 8, .scale = 2.0});        // on the meta device, before parallelize_*()
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/blocks/linear/magnitude.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/modules/module.h"

namespace d9d {

struct LowRankConfig {
  std::int64_t rank = 0;
  double scale = 1.0;          // of the term
  double dropout = 0.0;        // of what A reads, in training
  bool has_magnitude = false;  // DoRA (magnitude.h), which Linear alone can have
};

// Regular expression of the whole names of the weights of A, B and magnitudes, and whether a name is such a one. A
// factor that is cut as a vocabulary has one for each split: lora_B.<split>.weight.
inline constexpr const char* kAdapterParameters = "(?:.*\\.)?lora_(?:[AB]\\.(?:[^.]+\\.)?|magnitude_vector\\.)weight";
[[nodiscard]] bool is_adapter_parameter(const std::string& name);

// Drops what A reads: where tensor parallelism cuts A, B or the outputs (Linear::compute_only) the whole sequence, with
// the features that A has on this rank, otherwise the positions of this rank, as between blocks.
class AdapterDropout final : public Dropout {
 public:
  // a [..., in, ...]: the weight of A, of which `in` is the second dim; b: those of B.
  AdapterDropout(double drop_probability, ParameterPtr a, std::vector<ParameterPtr> b)
      : Dropout(drop_probability), a_(std::move(a)), b_(std::move(b)) {}
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;

 protected:
  [[nodiscard]] std::vector<Part> parts_of(const at::Tensor& mask) const override;

 private:
  const ParameterPtr a_;
  const std::vector<ParameterPtr> b_;
};

// A, B: the modules of the factors, without bias. Both are Linear, or GroupedLinear; a factor that is cut as a
// vocabulary, B of a head and A of an embedding, is SplitWeights.
template <class A, class B = A>
struct LowRankAdapter {
  ModulePtr<A> a;
  ModulePtr<B> b;
  ModulePtr<AdapterDropout> dropout;  // null: none
  double scale = 1.0;
  ModulePtr<Magnitude> magnitude = {};  // null: LoRA. Others than Linear have none

  // The term for x. others: the other arguments of A's and B's forward.
  template <class... Others>
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, const Others&... others) const {
    return b(scaled_hidden(x, others...), others...);
  }
  // What B reads for x: the output of A, which is narrow, times the scale.
  template <class... Others>
  [[nodiscard]] at::Tensor scaled_hidden(const at::Tensor& x, const Others&... others) const {
    return a(dropout ? dropout(x) : x, others...).mul(scale);
  }
  // The term from the output of A.
  template <class... Others>
  [[nodiscard]] at::Tensor from_hidden(const at::Tensor& hidden, const Others&... others) const {
    return b(hidden.mul(scale), others...);
  }
};

// The base class of modules that can have an adapter. It comes on the meta device, before parallelize_*(), which lays
// it out.
template <class A, class B = A>
class Adaptable : public Module {
 public:
  [[nodiscard]] const std::optional<LowRankAdapter<A, B>>& adapter() const { return adapter_; }
  // Local. Registers A, B, dropout and magnitude as children. Throws ConfigError if there is an adapter already.
  void put_adapter(LowRankAdapter<A, B> adapter) {
    register_module("lora_A", adapter.a);
    register_module("lora_B", adapter.b);
    if (adapter.dropout) register_module("lora_dropout", adapter.dropout);
    if (adapter.magnitude) register_module("lora_magnitude_vector", adapter.magnitude);
    adapter_ = std::move(adapter);
  }
  // Local. Removes these children. There must be an adapter.
  [[nodiscard]] LowRankAdapter<A, B> take_adapter() {
    for (const char* name : {"lora_A", "lora_B", "lora_dropout", "lora_magnitude_vector"}) remove_child(name);
    return *std::exchange(adapter_, std::nullopt);
  }

 protected:
  // Puts the adapter of two new modules in the dtype of the weight.
  void put_new_adapter(const ModulePtr<A>& a, const ModulePtr<B>& b, const LowRankConfig& config, at::ScalarType dtype,
                       const ModulePtr<Magnitude>& magnitude = {}) {
    a->to(dtype);
    b->to(dtype);
    ModulePtr<AdapterDropout> dropout;
    if constexpr (requires { a->weight; }) {  // otherwise A looks up rows by ids, which nothing drops
      std::vector<ParameterPtr> weights_of_b;
      for (const auto& [name, parameter] : b->named_parameters()) weights_of_b.push_back(parameter);
      if (config.dropout > 0.0) dropout = make_module<AdapterDropout>(config.dropout, a->weight, weights_of_b);
    }
    put_adapter({.a = a, .b = b, .dropout = dropout, .scale = config.scale, .magnitude = magnitude});
  }

 private:
  std::optional<LowRankAdapter<A, B>> adapter_;
};

}  // namespace d9d
