// Muon on a GPU: steps as on the CPU, and no wait of the host for them.
#include <limits>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include "d9d/optim/muon.h"

#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/gpu_test.h"

namespace d9d::muon_cuda_test {
namespace {

class MuonCuda : public test::GpuTest {};

std::vector<NamedParameter> parameters(at::Device device, at::ScalarType dtype = at::kFloat) {
  using enum ParameterRole;
  std::vector<NamedParameter> result;
  for (const auto& [shape, role] : {std::pair(std::vector<std::int64_t>{64, 96}, kLinear),
                                    {{96, 64}, kLinear},
                                    {{4, 48, 32}, kGroupedLinear},
                                    {{33}, kNorm}}) {
    const std::int64_t numel = c10::multiply_integers(shape);
    const at::Tensor values = at::sin(at::arange(numel, at::kDouble) + std::ssize(result)).view(shape);
    result.push_back({.name = "p" + std::to_string(result.size()),
                      .tensor = values.to(device, dtype).requires_grad_(),
                      .role = role});
  }
  return result;
}

void set_gradients(const std::vector<NamedParameter>& leaves, int step) {
  for (const NamedParameter& leaf : leaves) {
    const at::Tensor positions = at::arange(leaf.tensor.numel(), at::kDouble);
    const at::Tensor grad = at::cos(positions * positions * 0.37 + step).view(leaf.tensor.sizes());
    leaf.tensor.mutable_grad() = grad.to(leaf.tensor.options().requires_grad(false));
  }
}

TEST_F(MuonCuda, Steps_as_on_the_cpu) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const auto on_gpu = parameters(at::kCUDA, dtype), on_cpu = parameters(at::kCPU, dtype);
    const MuonConfig config{.lr = 0.01, .products_dtype = Dtype::kFloat32};
    Muon ours(on_gpu, config), expected(on_cpu, config);
    for (int step = 0; step < 5; ++step) {
      set_gradients(on_gpu, step);
      set_gradients(on_cpu, step);
      ours.step(0.01, at::full({}, 0.5, on_gpu[0].tensor.options().dtype(at::kDouble).requires_grad(false)));
      expected.step(0.01, at::full({}, 0.5, at::kDouble));
    }
    for (std::size_t i = 0; i < on_gpu.size(); ++i) {
      test::expect_close(on_gpu[i].name, on_gpu[i].tensor.cpu(), on_cpu[i].tensor,
                         test::tolerance(dtype == at::kDouble ? "fp64" : "fp32"));
    }
  }
}

TEST_F(MuonCuda, Changes_nothing_at_a_factor_of_nan_that_the_host_does_not_know) {
  const auto leaves = parameters(at::kCUDA, at::kBFloat16);
  Muon optimizer(leaves, {.lr = 0.01});
  set_gradients(leaves, 0);
  const at::Tensor before = leaves[0].tensor.detach().clone();
  const at::Tensor scale =
      at::full({}, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(at::kCUDA).dtype(at::kDouble));
  optimizer.step(0.01, scale);
  EXPECT_TRUE(at::equal(leaves[0].tensor, before));
  EXPECT_EQ(optimizer.state_dict().at("p0.momentum_buffer").local.abs().max().item<double>(), 0.0);
}

TEST_F(MuonCuda, Does_not_wait_for_the_device) {
  const auto leaves = parameters(at::kCUDA);
  Muon optimizer(leaves, {.lr = 0.01});
  set_gradients(leaves, 0);
  const at::Tensor scale = at::full({}, 0.5, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
  EXPECT_FALSE(test::waits_for_device([&] { optimizer.step(0.01, scale); }));
}

}  // namespace
}  // namespace d9d::muon_cuda_test
