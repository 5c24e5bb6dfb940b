// Measures where the time and the memory of a run go, for the log.
//
// Example
//   StepCosts costs(job, /*flops_per_token=*/1e10);
//   ...                                                     // a step
//   costs.add_tokens(num_tokens);                           // of all ranks
//   const at::Tensor memory = costs.peak_memory();          // at a logging step
//   const Throughput rate = costs.throughput();
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

// The means since the last call of StepCosts::throughput(), with evaluations, saves and everything else in between.
struct Throughput {
  double tokens_per_second = 0;    // of one rank
  std::optional<double> mfu = {};  // model FLOPs utilization; none if FLOPs a token or the device's peak are not known
};

class StepCosts {
 public:
  // flops_per_token: AnyModelProvider::flops_per_token().
  StepCosts(const DistContext& context, std::optional<double> flops_per_token);

  void add_tokens(std::int64_t num_tokens) { num_tokens_ += num_tokens; }
  [[nodiscard]] Throughput throughput();

  // Collective. Returns fp64 [2] on the job's device: the most bytes that tensors of one device have occupied so far (0
  // on CPUs), and the most bytes of host memory that a process has now. Does not wait for the device.
  [[nodiscard]] at::Tensor peak_memory() const;
  // Local. Returns the bytes that this rank's tensors occupy on its device or, on a CPU, that its process occupies.
  [[nodiscard]] std::int64_t memory_now() const;

 private:
  using Clock = std::chrono::steady_clock;

  const DistContext& context_;
  std::optional<double> seconds_at_peak_per_token_ = {};  // none: not known
  std::int64_t num_tokens_ = 0;                           // since `start_`
  Clock::time_point start_ = Clock::now();
};

// Returns the dense bfloat16 FLOP/s that the manufacturer states for a device, by its name; none if it is not known.
[[nodiscard]] std::optional<double> peak_flops(const std::string& device_name);

}  // namespace d9d
