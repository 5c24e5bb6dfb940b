// A module that can have an adapter, whatever its type: a linear, experts, an embedding, a language-modelling head, an
// adopted torch::nn::Linear.
//
// Example
//   if (const auto site = adapter_site(module)) site->add({.rank = 8, .scale = 2.0});
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/modules/module.h"

namespace d9d {

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

  [[nodiscard]] virtual bool has_adapter() const = 0;
  virtual void add(const LowRankConfig& config) = 0;
  // What the adapter adds to this rank's part of each weight, in at least float32. There must be an adapter.
  [[nodiscard]] virtual std::vector<at::Tensor> terms() const = 0;
  // Removes the adapter. Returns what puts it back, which may outlive this object.
  [[nodiscard]] virtual std::function<void()> take() = 0;
};

// The site of a module; null if no adapter of it can be built.
[[nodiscard]] std::unique_ptr<AdapterSite> adapter_site(Module& module);

}  // namespace d9d
