// One linear map for each group of rows: the experts of a mixture.
#pragma once

#include <optional>
#include <utility>

#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"
#include "d9d/modules/module.h"
#include "d9d/modules/module_ptr.h"

namespace d9d {

struct GroupedLinearConfig {
  std::int64_t num_groups = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  std::optional<GroupedMMConfig>
      backend;  // none: D9D_BACKEND_AUTO_GROUPED_MM (a GroupedMMConfig as JSON), else the best
};

// State: weight [G, in, out] (transposed relative to Linear), initially from U(-1/sqrt(in), 1/sqrt(in)). With an
// adapter of rank r also lora_A.weight [G, in, r], initially as weight, and lora_B.weight [G, r, out], initially 0.
class GroupedLinear : public Adaptable<GroupedLinear> {
 public:
  explicit GroupedLinear(const GroupedLinearConfig& config);
  // x [N, in] sorted by group -> [N, out].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const kernels::ExpertTokenGroups& groups) const;

  // Local. Puts a new adapter, see Adaptable.
  void add_adapter(const LowRankConfig& config);

  // The backend of its product, which is chosen at materialize().
  [[nodiscard]] kernels::GroupedMMBackend backend() const { return backend_; }

  const GroupedLinearConfig config;
  const ParameterPtr weight;

 protected:
  void after_materialize(at::Device device) override;

 private:
  kernels::GroupedMMBackend backend_ = kernels::GroupedMMBackend::kEager;
};

// Applies two linears of the same sizes to x; in one op if neither has hooks of its own (kernels/grouped_mm), and the A
// of adapters of one rank in another.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> grouped_linears_of(const at::Tensor& x,
                                                                   const kernels::ExpertTokenGroups& groups,
                                                                   const ModulePtr<GroupedLinear>& first,
                                                                   const ModulePtr<GroupedLinear>& second);

}  // namespace d9d
