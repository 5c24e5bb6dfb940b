// Averages of parameters over the steps of a training (exponential moving average, EMA); each update equals that of
// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.
//
// Example
//   Ema ema(trainable_parameters(*model).parameters, {.decay = 0.999});
//   const StepTotals step = gradients.apply(optimizer, learning_rate);
//   if (step.is_usable) ema.update();
//   ...
//   const AveragedWeights averaged(ema);                    // while it lives, the model has the averages
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d {

// Steps are those that changed the model.
struct EmaConfig {
  double decay = 0.999;           // average = decay * average + (1 - decay) * parameter
  bool warmup = false;            // the n-th average has the decay (1 + n) / (10 + n) while that is less than `decay`
  std::int64_t start_step = 0;    // the averages equal the parameters until so many steps are done
  std::int64_t period_steps = 1;  // averages follow every so many steps after start_step

  static constexpr auto fields() {
    return record<EmaConfig>(required("decay", &EmaConfig::decay, half_open(0, 1)),
                             defaulted("warmup", &EmaConfig::warmup),
                             defaulted("start_step", &EmaConfig::start_step, at_least(0)),
                             defaulted("period_steps", &EmaConfig::period_steps, at_least(1)));
  }
};

// Averages are fp32 (fp64 for fp64 parameters), whatever the parameter's dtype, and have its layout. Local: replicas of
// equal parameters have equal averages.
class Ema {
 public:
  // Averages begin as the parameters are. Throws ConfigError for values out of range, for tensors that are not floating
  // leaves with storage, and for names and tensors that repeat.
  Ema(const std::vector<NamedParameter>& parameters, const EmaConfig& config);

  // Called after each step that changed the model, and not after others. The host does not wait for the device.
  // Parameters in half precision are widened in batches of 2^26 elements.
  void update();

  // <name>.average, and num_updates (0-dim int64, on the CPU): aliases, complete after construction.
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const;
  // The averages by the names of their parameters, rounded to the parameters' dtypes: aliases where these are the same.
  [[nodiscard]] std::map<std::string, DTensor> rounded() const;
  [[nodiscard]] std::int64_t num_updates() const { return num_updates_.item<std::int64_t>(); }

 private:
  friend class AveragedWeights;

  struct Average {
    NamedParameter parameter;
    at::Tensor values;
  };

  // Throws StateError while AveragedWeights lives.
  void check_not_swapped(const char* what) const;

  EmaConfig config_;
  std::vector<Average> averages_;
  at::Tensor num_updates_;
  bool is_swapped_ = false;
};

// While it lives, parameters have the values of their averages, in the same memory. Then they have their own again, bit
// for bit. Local. Must not outlive the Ema, which must not be moved or used meanwhile.
class AveragedWeights {
 public:
  // Parameters that have the dtype of their average exchange values with it; others are copied meanwhile, which takes
  // their size in memory. Throws StateError if the Ema has AveragedWeights already.
  explicit AveragedWeights(Ema& ema);
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  Ema& ema_;
  std::map<std::string, at::Tensor> trained_;  // copies of parameters by name
};

}  // namespace d9d
