// y = x W^T (+ b), and a term of low rank if the linear has an adapter, whose rows may have magnitudes of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/modules/module.h"

namespace d9d {

struct LinearConfig {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool has_bias = false;
  ParameterRole role = ParameterRole::kLinear;  // of the weight
};

enum class LinearBias : std::uint8_t { kAdded, kLeftOut };

// State: weight [out, in], and bias [out] if has_bias. Both are initially from U(-1/sqrt(in), 1/sqrt(in)), as in
// PyTorch. With an adapter of rank r also lora_A.weight [r, in], initially as weight, and lora_B.weight [out, r],
// initially 0, both of the weight's role. With magnitudes also lora_magnitude_vector.weight [out] (magnitude.h); then
// forward is collective where tensor parallelism cuts the weight's columns.
class Linear : public Adaptable<Linear> {
 public:
  explicit Linear(const LinearConfig& config);
  // x [..., in] -> [..., out].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  // The same, perhaps without the bias, which row-parallel linears add after a sum over ranks.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, LinearBias use) const;
  [[nodiscard]] double training_flops(std::int64_t num_positions) const override;
  // Whether it has neither a bias, hooks of its own nor a part of an adapter that is more than a product, so that a
  // kernel may use its weight and low_rank_terms() directly.
  [[nodiscard]] bool is_product() const {
    return !bias && is_plain() && (!adapter() || (adapter_is_term() && !has_magnitude()));
  }
  [[nodiscard]] bool has_magnitude() const { return adapter() && adapter()->magnitude; }
  // Whether there is an adapter that an operator can add as a term of low rank: without dropout, and without hooks of A
  // and B.
  [[nodiscard]] bool adapter_is_term() const {
    return adapter() && !adapter()->dropout && adapter()->a->is_plain() && adapter()->b->is_plain();
  }
  // The term of such an adapter, which is that of `output` of an operator; empty otherwise.
  [[nodiscard]] std::vector<kernels::LowRankTerm> low_rank_terms(std::size_t output = 0) const;

  // Local. Puts a new adapter, see Adaptable.
  void add_adapter(const LowRankConfig& config);

  // Local. From now on forward computes these outputs, by their rows of the weight, and no others: for a rank that has
  // a whole weight (add_whole) and needs a part of the product. ranks: those that compute other outputs for the same x,
  // of which a dropout of the adapter drops the same elements on all of them.
  void compute_only(const FlatRange& outputs, const DeviceMesh& ranks);
  // The rows of those outputs in a tensor with a row for each output, such as the weight.
  [[nodiscard]] at::Tensor computed_rows(const at::Tensor& rows) const;

  const LinearConfig config;
  const ParameterPtr weight;
  const ParameterPtr bias;  // null without bias

 private:
  std::optional<FlatRange> computed_;  // none: all outputs
};

// Whether a kernel may use the weights, biases and low_rank_terms() of the linears directly.
[[nodiscard]] bool are_products(const std::vector<ModulePtr<Linear>>& linears);

// Applies each linear to x, in order. If none has hooks of its own, and all have a bias or none has, the products with
// the weights are one operator, which joins them where it can and adds the terms of adapters without dropout
// (kernels/linear/linear.h), and biases unless one has magnitudes. With an exchange at an edge, for linears that
// are_products(), x is a shard, or there is one linear, whose bias is added to this rank's rows of the sum; the call is
// collective then.
[[nodiscard]] std::vector<at::Tensor> linears_of(const at::Tensor& x, const std::vector<ModulePtr<Linear>>& linears,
                                                 const kernels::RowEdges& edges = {});

// For after_materialize of a block that uses linears_of: places the weights contiguously one after another in memory,
// with undefined values. The memory of weights of flat groups is left to their group.
void join_weights(const std::vector<ModulePtr<Linear>>& linears);

// For tensor_plan() of a block: places the parameters of a linear that computes this rank's columns, or that takes
// them (rows of the product), or that every rank has.
//                  weight      bias        lora_A      lora_B, magnitudes
//   add_columns    Shard(0)    Shard(0)    Replicate   Shard(0)
//   add_rows       Shard(1)    Replicate   Shard(1)    Replicate      the sum over ranks has the adapter's term too
//   add_whole      Replicate   Replicate   Replicate   Replicate      see Linear::compute_only
// unit: columns that stay on one rank, such as those of a head.
void add_columns(TensorPlan& plan, const ModulePtr<Linear>& linear, std::int64_t unit = 1);
void add_rows(TensorPlan& plan, const ModulePtr<Linear>& linear, std::int64_t unit = 1);
void add_whole(TensorPlan& plan, const ModulePtr<Linear>& linear);

}  // namespace d9d
