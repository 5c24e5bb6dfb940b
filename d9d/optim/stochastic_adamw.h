// AdamW for parameters in bfloat16 without a wider copy. After each step parameters, and moments in bfloat16, are
// rounded up or down at random so that the expected value is kept. Small updates then accumulate, while rounding to
// nearest would lose them.
//
// Example
//   StochasticAdamW optimizer({{"weight", weight}}, {.lr = 3e-4, .state_dtype = Dtype::kBFloat16}, /*seed=*/42);
//   loss.backward();
//   optimizer.step(optimizer.learning_rate());
//
// The random bits are a function of (seed, name, step, element of the whole parameter). Replicas therefore round alike,
// a shard rounds its elements as a single rank would, CPU and CUDA draw the same bits, and a resumed job continues as
// if it had not stopped.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/optim/config.h"
#include "d9d/optim/moments.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d {

// Moments of bfloat16 parameters have config.state_dtype: bfloat16 or float32. Parameters of float32 or float64 (a
// router's, for example) are updated as by AdamW, with moments of their own dtype. Gradients may have any floating
// dtype.
// Local.
class StochasticAdamW {
 public:
  // Allocates all state; moments are zeros. Throws ConfigError for values out of range, for other state dtypes, for
  // tensors that are float16 or not floating leaves, and for names that repeat.
  StochasticAdamW(const std::vector<NamedParameter>& parameters, const StochasticAdamWConfig& config,
                  std::uint64_t seed);

  [[nodiscard]] double learning_rate() const { return config_.lr; }
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return rate_factors_; }

  // As in AdamW.
  void step(double learning_rate);
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step() { detail::forget_step(moments_); }

  // <name>.step (0-dim int64, on the CPU), <name>.exp_avg, <name>.exp_avg_sq, and rounding_seed (0-dim int64, on the
  // CPU).
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const;

 private:
  StochasticAdamWConfig config_;
  at::Tensor seed_;
  std::vector<detail::Moments> moments_;
  std::map<std::string, double> rate_factors_;
};

}  // namespace d9d
