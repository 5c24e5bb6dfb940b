// A time for each transfer of a pipeline, kUnknownTime until it is set.
//
// Example
//   TransferTimes times(program);
//   times[transfer] = 3.5;
//   times[other] == kUnknownTime;
#pragma once

#include <limits>
#include <vector>

#include "d9d/pipelining/program/pipeline_program.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d::detail {

inline constexpr double kUnknownTime = std::numeric_limits<double>::infinity();

class TransferTimes {
 public:
  explicit TransferTimes(const PipelineProgram& program)
      : num_stages_(program.stages.num_stages()),
        num_microbatches_(program.num_microbatches),
        times_(static_cast<std::size_t>(2 * num_stages_ * num_microbatches_), kUnknownTime) {}

  double& operator[](const Transfer& transfer) {
    const auto kind = transfer.is_forward() ? 0 : num_stages_;
    return times_.at(
        static_cast<std::size_t>((kind + transfer.source.value) * num_microbatches_ + transfer.microbatch.value));
  }

 private:
  std::int64_t num_stages_;
  std::int64_t num_microbatches_;
  std::vector<double> times_;
};

}  // namespace d9d::detail
