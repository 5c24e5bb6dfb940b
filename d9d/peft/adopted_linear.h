// The adapter of a torch::nn::Linear that a model adopted: a term that forward adds to its output, whose children are
// named as those of a Linear's adapter.
//
// Example
//   AdoptedLinear(adopted).add_adapter({.rank = 8, .scale = 2.0});        // on the meta device
#pragma once

#include <optional>

#include "d9d/blocks/linear/linear.h"
#include "d9d/modules/adopt.h"

namespace d9d {

// What an adopted torch::nn::Linear has in common with a Linear. Borrows the module, which is_linear().
class AdoptedLinear {
 public:
  explicit AdoptedLinear(detail::AdoptedModule& module);
  [[nodiscard]] std::optional<LowRankAdapter<Linear>> adapter() const;
  // As of Linear.
  void add_adapter(const LowRankConfig& config);
  void put_adapter(const LowRankAdapter<Linear>& adapter);
  [[nodiscard]] LowRankAdapter<Linear> take_adapter();

  const ParameterPtr weight;  // [out, in]
  const ParameterPtr bias;    // null without one

 private:
  detail::AdoptedModule& module_;
};

}  // namespace d9d
