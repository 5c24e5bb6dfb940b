#include "d9d/internals/grad_norm/distributed_grad_norm.h"

#include <array>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/forwarding_communicator.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/ranks.h"

namespace d9d::test::distributed_grad_norm_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A parameter on a mesh pp x ep x tp whose stored part has a gradient of `value` everywhere.
ParameterPtr with_gradient(const DeviceMesh& mesh, const std::vector<std::pair<std::string, Placement>>& placements,
                           double value, at::Device device = at::kCPU) {
  auto parameter = std::make_shared<Parameter>(ParameterSpec{.shape = {8, 8}, .init = init::ones()});
  for (const auto& [axis, placement] : placements) parameter->place(mesh, axis, placement, placement);
  parameter->to(at::kDouble);
  parameter->materialize(device);
  parameter->stored().mutable_grad() = at::full_like(parameter->stored(), value);
  return parameter;
}

class DistributedGradNorm : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Orders, DistributedGradNorm, ::testing::Values(1.0, 2.0, 3.0, kInfinity));

// Two stages: one has a whole parameter and one that is sharded over two axes, the other has one that is sharded over
// one axis. The reference refused two axes.
TEST_P(DistributedGradNorm, Counts_every_element_of_any_layout_once) {
  run_ranks(RankBackend::kThreads, 8, [](World& world) {
    const DeviceMesh mesh("m", {{"pp", 2}, {"ep", 2}, {"tp", 2}}, borrowed(world));
    std::vector<ParameterPtr> parameters;
    if (mesh.axis_coordinate("pp") == 0) {
      parameters = {with_gradient(mesh, {{"ep", Replicate{}}}, 2.0),
                    with_gradient(mesh, {{"ep", Shard{0}}, {"tp", Shard{1}}}, 3.0)};
    } else {
      parameters = {with_gradient(mesh, {{"tp", Shard{0}}}, 5.0)};
    }
    const at::Tensor norm =
        distributed_grad_norm(group_parameters_for_norm(parameters), GetParam(), mesh.slice({"pp"}));
    const at::Tensor all = at::cat({at::full({64}, 2.0), at::full({64}, 3.0), at::full({64}, 5.0)}).to(at::kDouble);
    EXPECT_NEAR(norm.item<double>(), at::linalg_vector_norm(all, GetParam()).item<double>(), 1e-12);
  });
}

// Its maximum ignores NaN, as fmax does.
struct MaximumWithoutNan : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    if (op == ReduceOp::kMax) tensor.masked_fill_(tensor.isnan(), -kInfinity);
    return inner().all_reduce(tensor, op);
  }
};

TEST_P(DistributedGradNorm, Is_NaN_on_all_ranks_when_it_is_on_one) {
  for (const RankBackend backend : {RankBackend::kThreads, RankBackend::kGloo}) {
    for (const std::int64_t sick : {0, 1, 2, 3}) {
      run_ranks(backend, 4, [&](World& world) {
        const auto lossy = world_of<MaximumWithoutNan>(world);
        const DeviceMesh mesh("m", {{"pp", 2}, {"tp", 2}}, lossy);
        const double value = world.rank() == sick ? std::numeric_limits<double>::quiet_NaN() : 5.0;
        const auto groups = group_parameters_for_norm({with_gradient(mesh, {{"tp", Shard{0}}}, value)});
        EXPECT_TRUE(std::isnan(distributed_grad_norm(groups, GetParam(), mesh.slice({"pp"})).item<double>()))
            << "rank " << world.rank() << " with NaN on " << sick;
      });
    }
  }
}

// Adds up in another order in the group of each replica, as rings over other machines do.
struct OrderOfItsOwn : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    if (op != ReduceOp::kSum || tensor.numel() != 1) return inner().all_reduce(tensor, op);
    const at::Tensor all = at::empty({size()}, tensor.options());
    inner().all_gather(all, tensor.view(1)).wait();
    double sum = 0;
    const std::int64_t first = group().ranks.front() == 0 ? 0 : 1;
    for (std::int64_t i = 0; i < size(); ++i) sum += all[(i + first) % size()].item<double>();
    tensor.fill_(sum);
    return Work();
  }
};

TEST(NormOfReplicas, Has_the_same_bits_whatever_order_a_backend_adds_in) {
  std::array<double, 8> norms{};
  run_ranks(RankBackend::kThreads, 8, [&](World& world) {
    const DeviceMesh mesh("m", {{"dp_replicate", 2}, {"tp", 4}}, world_of<OrderOfItsOwn>(world));
    // Of 16 elements: 2^53, to which 1 adds nothing, and thrice 1, whose sum does add.
    const double value = world.rank() % 4 == 0 ? 0x1p49 : 0x1p-4;
    const auto groups = group_parameters_for_norm({with_gradient(mesh, {{"tp", Shard{0}}}, value)});
    norms.at(static_cast<std::size_t>(world.rank())) = distributed_grad_norm(groups, 1.0, DeviceMesh()).item<double>();
  });
  for (const double norm : norms) EXPECT_EQ(norm, norms[0]);
}

class NormOverGpus : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    if (!has_gpus(2)) GTEST_SKIP() << "needs 2 GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Nccl, NormOverGpus, ::testing::Values(1.0, 2.0, 3.0, kInfinity));

TEST_P(NormOverGpus, Is_the_largest_of_all_ranks_and_NaN_when_one_is) {
  run_ranks(RankBackend::kNccl, 2, [](World& world) {
    const DeviceMesh mesh("m", {{"tp", 2}}, borrowed(world));
    const auto norm_with = [&](double value) {
      const auto parameter = with_gradient(mesh, {{"tp", Shard{0}}}, value, world.device());
      return distributed_grad_norm(group_parameters_for_norm({parameter}), GetParam(), DeviceMesh()).item<double>();
    };
    const at::Tensor all = at::cat({at::full({32}, 3.0), at::full({32}, 5.0)}).to(at::kDouble);
    EXPECT_NEAR(norm_with(world.rank() == 0 ? 3.0 : 5.0), at::linalg_vector_norm(all, GetParam()).item<double>(), 1e-9);
    for (const std::int64_t sick : {0, 1}) {
      EXPECT_TRUE(std::isnan(norm_with(world.rank() == sick ? std::numeric_limits<double>::quiet_NaN() : 5.0)));
    }
  });
}

TEST(GradNormGroups, Have_cut_parameters_first_and_no_frozen_ones) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DeviceMesh mesh("m", {{"ep", 2}}, borrowed(world));
    const ParameterPtr whole = with_gradient(mesh, {{"ep", Replicate{}}}, 1.0);
    const ParameterPtr cut = with_gradient(mesh, {{"ep", Shard{0}}}, 1.0);
    const ParameterPtr frozen = with_gradient(mesh, {{"ep", Shard{0}}}, 1.0);
    frozen->set_requires_grad(false);
    const auto groups = group_parameters_for_norm({whole, frozen, cut});
    ASSERT_EQ(groups.size(), 2);
    EXPECT_EQ(groups[0].parameters, std::vector<ParameterPtr>{cut});
    EXPECT_EQ(groups[0].shards, mesh);
    EXPECT_EQ(groups[1].parameters, std::vector<ParameterPtr>{whole});
  });
}

TEST(GradNormGroups, Of_nothing_have_the_norm_zero) {
  EXPECT_EQ(distributed_grad_norm({}, 2.0, DeviceMesh()).item<double>(), 0.0);
}

}  // namespace
}  // namespace d9d::test::distributed_grad_norm_test
