// Sums the gradients of parameters that several ranks hold whole, while the last backward of a step runs.
//
// Example
//   BucketedReduction reduction(module->named_parameters(), {.bucket_size_bytes = 25 << 20});
//   // then as core of modules/gradient_reduction.h says
//
// Takes the trained parameters that no other reduction has (FSDP), and reads gradient placements: over axes where the
// gradient is Partial(sum) it is summed. Gradients wait in flat buckets, in the reverse order of declaration, as
// backward makes them; a bucket is reduced when all its gradients of the last microbatch have come, buckets always in
// the same order. On CPUs, where a sum keeps backward waiting, all are reduced after it: ranks whose gradients come at
// other times would wait for each other in different groups. Without such axes, and where gradients have the
// parameter's dtype, nothing is copied, unless memory is kept. Its destructor takes its hooks off the
// parameters.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d {

struct BucketedReductionConfig {
  std::int64_t bucket_size_bytes = std::int64_t{25} << 20;  // of what is stored and sent
  std::optional<Dtype> gradient_dtype = std::nullopt;       // as gradient_dtype_of() of core/dtype takes it
  bool keeps_memory = false;  // buckets for all parameters: gradients lie at the same places in all steps
};

class BucketedReduction final : public GradientReduction {
 public:
  // Parameters have storage. Throws ConfigError, naming the parameter, for a gradient placement that cannot be summed.
  BucketedReduction(const std::vector<std::pair<std::string, ParameterPtr>>& parameters,
                    const BucketedReductionConfig& config);
  ~BucketedReduction() override;

  // In the last microbatch gradients must come from one backward: those of a second, whose buckets are summed already,
  // are a StateError on GPUs.
  void begin_microbatch(bool is_last) override;
  void end_microbatch() override;
  void finish() override;
  void clear() override;
  void abandon() override;

  // Which gradients have values in this step, one a parameter with a bucket. A backward that a graph replays cannot
  // say: after it they are set to what they were after the backward that the graph captured.
  [[nodiscard]] std::vector<bool> received() const;
  void set_received(const std::vector<bool>& received);

  [[nodiscard]] std::size_t num_buckets() const { return buckets_.size(); }

 private:
  class Bucket;
  void reduce_ready(bool all);

  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<ParameterPtr> others_;  // that keep the gradients of autograd
  std::optional<SideStream> stream_;
  StreamEvent reduced_;
  std::size_t num_reduced_ = 0;  // buckets of this step
  bool is_last_microbatch_ = true;
};

}  // namespace d9d
