// The seven degrees of parallelism of a job. The number of ranks is their product without expert parallelism, because
// experts are distributed over ranks that the other axes already count.
//
// Example
//   const DeviceMeshParameters mesh{.pipeline_parallel = 4, .data_parallel_replicate = 2, .expert_parallel = 2};
//   mesh.validate(ConfigPath("mesh"));
//   mesh.world_size();   // 8
#pragma once

#include <cstdint>

#include "d9d/base/record.h"

namespace d9d {

struct DeviceMeshParameters {
  std::int64_t pipeline_parallel = 1;           // parts of the model, one after the other
  std::int64_t data_parallel_replicate = 1;     // replicas that divide the samples
  std::int64_t data_parallel_shard = 1;         // the same, and each holds a share of the parameters
  std::int64_t context_parallel_replicate = 1;  // ranks that divide the sequences
  std::int64_t context_parallel_shard = 1;      // the same, and each holds a share of the parameters
  std::int64_t tensor_parallel = 1;             // ranks that divide each layer
  std::int64_t expert_parallel = 1;             // divides the product of the data, context and tensor degrees

  [[nodiscard]] bool has_pipeline_parallel() const { return pipeline_parallel > 1; }
  [[nodiscard]] bool has_data_parallel_replicate() const { return data_parallel_replicate > 1; }
  [[nodiscard]] bool has_data_parallel_shard() const { return data_parallel_shard > 1; }
  [[nodiscard]] bool has_context_parallel_replicate() const { return context_parallel_replicate > 1; }
  [[nodiscard]] bool has_context_parallel_shard() const { return context_parallel_shard > 1; }
  [[nodiscard]] bool has_tensor_parallel() const { return tensor_parallel > 1; }
  [[nodiscard]] bool has_expert_parallel() const { return expert_parallel > 1; }
  [[nodiscard]] bool is_distributed() const;

  // Number of ranks of the job.
  [[nodiscard]] std::int64_t world_size() const;

  // Each sequence has a multiple of so many positions: context-parallel ranks have two equal chunks of it each
  // (context_parallel_cut()), and tensor-parallel ranks divide what each of these has.
  [[nodiscard]] std::int64_t position_divisor() const;

  // Throws ConfigError, with the arithmetic, unless degrees are positive and fit together.
  void validate(const ConfigPath& path) const;

  bool operator==(const DeviceMeshParameters&) const = default;

  static constexpr auto fields() {
    using Mesh = DeviceMeshParameters;
    return record<Mesh>(defaulted("pipeline_parallel", &Mesh::pipeline_parallel, at_least(1)),
                        defaulted("data_parallel_replicate", &Mesh::data_parallel_replicate, at_least(1)),
                        defaulted("data_parallel_shard", &Mesh::data_parallel_shard, at_least(1)),
                        defaulted("context_parallel_replicate", &Mesh::context_parallel_replicate, at_least(1)),
                        defaulted("context_parallel_shard", &Mesh::context_parallel_shard, at_least(1)),
                        defaulted("tensor_parallel", &Mesh::tensor_parallel, at_least(1)),
                        defaulted("expert_parallel", &Mesh::expert_parallel, at_least(1)));
  }
};

extern template const ValueType& json_type<DeviceMeshParameters>();

}  // namespace d9d
