// Computes the size of the optimiser's state for the parameters of a module, without building the optimiser for them.
//
// Example
//   OptimizerSizes sizes(AdamWConfig{});
//   sizes.bytes_of(*module);              // 8 bytes per element of the trained parameters that this rank stores
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include <c10/core/ScalarType.h>

#include "d9d/modules/module.h"
#include "d9d/optim/build_optimizer.h"
#include "d9d/optim/config.h"

namespace d9d {

// Computes the bytes of an optimiser's state. Assumes that the state grows linearly with the elements of a parameter:
// the bytes per element are the difference between the states for two elements and for one, for each dtype, kind of
// parameter and group.
class OptimizerSizes {
 public:
  explicit OptimizerSizes(const OptimizerConfig& config) : config_(config), groups_(groups_of(config)) {}

  [[nodiscard]] std::int64_t bytes_of(const Module& module);

 private:
  // dtype, role, number of dims, group
  using Kind = std::tuple<at::ScalarType, ParameterRole, std::size_t, std::size_t>;
  [[nodiscard]] std::int64_t state_bytes(const std::string& name, const Parameter& like,
                                         std::int64_t num_elements) const;

  OptimizerConfig config_;
  ParameterGroups groups_;
  std::map<Kind, std::int64_t> of_element_;
};

// Returns the bytes of averages of the weights of this module (trainer.ema) on this rank.
[[nodiscard]] std::int64_t bytes_of_averages(const Module& module);

}  // namespace d9d
