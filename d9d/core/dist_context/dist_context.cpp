#include "d9d/core/dist_context/dist_context.h"

#include "d9d/base/check.h"

namespace d9d {

DistContext::DistContext(DistContextConfig config) : config_(std::move(config)) {
  for_each_field<DeviceMeshParameters>([&](const auto& field) {
    const std::int64_t degree = config_.mesh.*field.member;
    D9D_CHECK(degree == 1, ConfigError, "[core::dist_context] mesh.", field.name, " = ", degree,
              ": more than one rank is not built in this version. Set it to 1.");
  });
}

std::int64_t DistContext::data_parallel_size() const {
  return config_.mesh.data_parallel_replicate * config_.mesh.data_parallel_shard;
}

}  // namespace d9d
