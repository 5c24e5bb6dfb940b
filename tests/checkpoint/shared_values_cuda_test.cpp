// Sums of tensors on a GPU are those of the same tensors on the host, of their values at the call.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/checkpoint/shared_values.h"

#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"

namespace d9d::test::shared_values_cuda_test {
namespace {

class SharedValuesCuda : public GpuTest {};

TEST_F(SharedValuesCuda, Are_those_of_the_host_and_of_the_call) {
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  CheckpointState on_host, on_device;
  JobTensors all;
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    all[name] = {.dtype = "", .shape = values.sizes().vec(), .pipeline_ranks = {0}};
    for (CheckpointState* const state : {&on_host, &on_device}) {
      const at::Tensor own = state == &on_host ? values : values.cuda();
      state->tensors.emplace(name, whole_dtensor(own));
      state->copies.emplace(name, own);  // so that it is compared
    }
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kChar, at::kBool}) {
    const at::Tensor waves = at::sin(at::arange(70'001, at::kDouble)).mul(100).to(dtype);
    add(cat("whole ", dtype), waves);
    add(cat("odd ", dtype), waves.narrow(0, 3, 997));
    add(cat("turned ", dtype), waves.narrow(0, 0, 6000).view({60, 100}).t());
    add(cat("one ", dtype), waves[7]);
  }
  on_host.buffers = on_device.buffers = {"whole Float", "odd BFloat16"};
  const SideStream copies_of_host(at::kCPU), copies(at::Device(at::kCUDA, 0));
  const nlohmann::json expected = SharedValues(on_host, all, alone, copies_of_host).wait();
  const SharedValues sums(on_device, all, alone, copies);
  for (const auto& [name, tensor] : on_device.tensors) {
    if (on_device.buffers.contains(name)) tensor.local.zero_();  // as the next forward may
  }
  const nlohmann::json actual = sums.wait();
  const auto by_key = [](const nlohmann::json& entries) {
    std::map<std::string, nlohmann::json> sorted;
    for (const auto& entry : entries) sorted.emplace(entry.at("key").get<std::string>(), entry.at("sum"));
    return sorted;
  };
  EXPECT_EQ(by_key(actual), by_key(expected));
  EXPECT_EQ(by_key(actual).size(), all.size());
}

}  // namespace
}  // namespace d9d::test::shared_values_cuda_test
