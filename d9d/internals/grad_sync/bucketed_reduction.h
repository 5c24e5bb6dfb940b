// Sums the gradients of parameters that several ranks hold whole; on GPUs this overlaps with the last backward of a
// step.
//
// Example
//   BucketedReduction reduction(module->named_parameters(), {.bucket_size_bytes = 25 << 20});
// then as in the example of modules/gradient_reduction.h
//
// Handles the trained parameters that are not flat shards (FSDP reduces those). A gradient is summed over the axes
// where its placement is Partial(sum). Gradients are collected in flat buckets, in the reverse order of declaration, as
// backward produces them. A bucket is reduced when all its gradients of the last microbatch are complete; buckets are
// always reduced in the same order. On CPUs, where a reduction blocks backward, all buckets are reduced after it: ranks
// whose gradients are computed in different orders would otherwise wait for each other in different groups. Gradients
// that need no sum and have the parameter's dtype are not copied, unless keeps_memory is set. A bucket allocates its
// memory when its first gradient of a step is computed and frees it in clear() or, if keeps_memory is set, in close().
// The destructor removes the hooks from the parameters.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/modules/freeze_guard.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d {

struct BucketedReductionConfig {
  std::int64_t bucket_size_bytes = std::int64_t{25} << 20;  // in the dtype of gradients
  std::optional<Dtype> gradient_dtype = std::nullopt;       // argument of gradient_dtype_of(), core/dtype
  bool keeps_memory = false;  // buckets for all parameters: gradients have the same addresses in all steps
};

class BucketedReduction final : public GradientReduction {
 public:
  // Parameters must have storage. Throws ConfigError, naming the parameter, for a gradient placement that cannot be
  // summed.
  BucketedReduction(const std::vector<std::pair<std::string, ParameterPtr>>& parameters,
                    const BucketedReductionConfig& config);
  ~BucketedReduction() override;

  // Throws StateError if a parameter, flat shards included, was frozen or thawed since the construction. In the last
  // microbatch all gradients must come from one backward. On GPUs gradients of a second backward, whose buckets may be
  // summed already, throw StateError.
  void begin_pass(const StagePass& pass) override;
  void end_pass() override;
  void finish() override;
  void clear() override;
  void abandon() override;
  void close() override;

  // Returns, for each parameter with a bucket, whether its gradient has a value in this step. The replay of a graph
  // does not update this: after a replay, call set_received() with the value of received() after the backward that the
  // graph captured.
  [[nodiscard]] std::vector<bool> received() const;
  void set_received(const std::vector<bool>& received);

  [[nodiscard]] std::size_t num_buckets() const { return buckets_.size(); }

 private:
  class Bucket;
  void reduce_ready(bool all);

  const FreezeGuard guard_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<ParameterPtr> others_;  // gradients of these remain in autograd's memory
  std::optional<SideStream> stream_;
  StreamEvent reduced_;
  std::size_t num_reduced_ = 0;         // number of buckets reduced in this step
  StagePass pass_ = {.is_last = true};  // the current or last pass
};

}  // namespace d9d
