#include "d9d/core/mesh/device_mesh_parameters.h"

#include <numeric>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {
namespace {

constexpr std::int64_t kMaxWorldSize = 1'000'000;

}  // namespace

bool DeviceMeshParameters::is_distributed() const { return *this != DeviceMeshParameters{}; }

std::int64_t DeviceMeshParameters::world_size() const {
  return pipeline_parallel * data_parallel_replicate * data_parallel_shard * context_parallel_shard *
         context_parallel_replicate * tensor_parallel;
}

std::int64_t DeviceMeshParameters::position_divisor() const {
  const std::int64_t context_parallel = context_parallel_shard * context_parallel_replicate;
  return context_parallel == 1 ? tensor_parallel : context_parallel * std::lcm(std::int64_t{2}, tensor_parallel);
}

void DeviceMeshParameters::validate(const ConfigPath& path) const {
  std::int64_t world = 1;
  for_each_field<DeviceMeshParameters>([&](const auto& field) {
    const std::int64_t degree = this->*field.member;
    D9D_CHECK(degree >= 1, ConfigError, path / field.name, "expected a number >= 1, got ", degree,
              ". 1 turns the axis off.");
    if (field.name == "expert_parallel") return;
    D9D_CHECK(degree <= kMaxWorldSize / world, ConfigError, path, "expected at most ", kMaxWorldSize,
              " ranks, got a product of degrees above it at ", field.name, " = ", degree, ". Lower the degrees.");
    world *= degree;
  });
  const std::int64_t expert_ranks = world / pipeline_parallel;
  D9D_CHECK(expert_ranks % expert_parallel == 0, ConfigError, path,
            "expected data_parallel_replicate x data_parallel_shard x context_parallel_replicate x "
            "context_parallel_shard x tensor_parallel = ",
            data_parallel_replicate, " x ", data_parallel_shard, " x ", context_parallel_replicate, " x ",
            context_parallel_shard, " x ", tensor_parallel, " = ", expert_ranks,
            " to be divisible by expert_parallel, got expert_parallel = ", expert_parallel,
            ". Experts are spread over the ranks of these five axes: change one of the degrees.");
}

template const ValueType& json_type<DeviceMeshParameters>();

}  // namespace d9d
