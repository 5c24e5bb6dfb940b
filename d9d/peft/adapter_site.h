// A module that can have an adapter, whatever its type: a linear, experts, an embedding, a language-modelling head, an
// adopted torch::nn::Linear.
//
// Example
//   if (const auto site = adapter_site(module)) site->add({.rank = 8, .scale = 2.0});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/modules/module.h"

namespace d9d {

// How the factors of an adapter make the term of a weight.
enum class LowRankProduct : std::uint8_t {
  kLinear,   // B A of A [r, in] and B [out, r], for a weight [out, in]
  kExperts,  // A B of A [E, in, r] and B [E, r, out], for a weight [E, in, out]
  kTable,    // A B^T of A [rows, r] and B [H, r], for a weight [rows, H]
};

// The term of a weight, in the dtype of the factors.
[[nodiscard]] at::Tensor low_rank_term(LowRankProduct product, const at::Tensor& a, const at::Tensor& b, double scale);

// The element for the index-th weight of factors that have one for each weight, or one for all.
template <class T>
[[nodiscard]] const T& factor_of(const std::vector<T>& factors, std::size_t index) {
  return factors.size() == 1 ? factors[0] : factors.at(index);
}

// An adapter, and the weights to which it adds terms: several of a vocabulary in splits.
struct LowRankTerms {
  LowRankProduct product;
  std::vector<ParameterPtr> weights;
  std::vector<ParameterPtr> a, b;  // one, or one for each weight
  double scale;
  ParameterPtr magnitude;  // [out], of DoRA, whose linears have one weight; null: none
};

// A module that can have an adapter. Borrows the module.
class AdapterSite {
 public:
  virtual ~AdapterSite() = default;
  // The parameters of its product: weights, then a bias if there is one.
  [[nodiscard]] virtual std::vector<ParameterPtr> bases() const = 0;
  // Whether this rank computes the product. It does not for an embedding whose weights a tied head alone reads.
  [[nodiscard]] virtual bool computes() const = 0;
  // Whether another module reads its weights too.
  [[nodiscard]] virtual bool is_tied() const = 0;

  // Whether its adapter may have magnitudes (DoRA): it is a linear between hidden activations.
  [[nodiscard]] virtual bool can_have_magnitude() const = 0;

  [[nodiscard]] virtual bool has_adapter() const = 0;
  virtual void add(const LowRankConfig& config) = 0;
  // The terms of its adapter, which must be there.
  [[nodiscard]] virtual LowRankTerms terms() const = 0;
  // Removes the adapter. Returns what puts it back, which may outlive this object.
  [[nodiscard]] virtual std::function<void()> take() = 0;
};

// The site of a module; null if no adapter of it can be built.
[[nodiscard]] std::unique_ptr<AdapterSite> adapter_site(Module& module);

// Calls visit(name, module, site) for each site below the model, once, under the first of its names.
void for_each_adapter_site(
    const Module& model,
    const std::function<void(const std::string& name, const Module& module, const AdapterSite& site)>& visit);

}  // namespace d9d
