// The custom optimiser of docs/own_model.md that needs whole matrices trains as on one rank, whatever the layout.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/core/dtensor/redistribute.h"
#include "d9d/optim/optimizer_protocol.h"

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::whole_matrices_test {
namespace {

using pipeline::expect_same;
using pipeline::PipelineJob;
using pipeline::train;

// Returns a matrix with singular values near 1 (Newton-Schulz iteration), and for a vector its signs.
at::Tensor orthogonal(const at::Tensor& whole) {
  if (whole.dim() != 2) return whole.sign();
  at::Tensor x = whole / (whole.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor product = x.mm(x.t());
    x = 1.5 * x - 0.5 * product.mm(x);
  }
  return x;
}

// Momentum, whose direction is made orthogonal (Muon, K. Jordan 2024).
class Muon {
 public:
  explicit Muon(const std::vector<NamedParameter>& parameters) : parameters_(parameters) {
    for (const NamedParameter& each : parameters_) momenta_.push_back(at::zeros_like(each.tensor.detach()));
  }
  double learning_rate() const { return 1e-2; }
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const NamedParameter& parameter = parameters_[i];
      const at::Tensor& momentum = momenta_[i].mul_(0.9);
      if (parameter.tensor.grad().defined()) momentum.add_(parameter.tensor.grad());
      const at::Tensor whole = d9d::full_tensor(parameter.laid_out(momentum));  // collective; the same on all ranks
      const at::Tensor update = orthogonal(whole);
      const d9d::DTensor part = d9d::distribute(update, parameter.mesh, parameter.placements);
      parameter.tensor.sub_(part.local.view_as(parameter.tensor), learning_rate);
    }
  }
  std::map<std::string, DTensor> state_dict() const {
    std::map<std::string, DTensor> state;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      state.emplace(parameters_[i].name + ".momentum", parameters_[i].laid_out(momenta_[i]));
    }
    return state;
  }

 private:
  std::vector<NamedParameter> parameters_;
  std::vector<at::Tensor> momenta_;
};

struct MuonProvider final : OptimizerProvider {
  Optimizer build_optimizer(const DistContext& /*context*/, const TrainableParameters& trainable) override {
    return Optimizer(Muon(trainable.parameters));
  }
};

TEST(WholeMatrices, Train_as_on_one_rank_on_every_layout) {
  MuonProvider muon;
  const pipeline::Trained expected = train({.own_optimizer = &muon});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.data_parallel_shard = 2},
                                           {.data_parallel_replicate = 2},
                                           {.tensor_parallel = 2},
                                           {.data_parallel_shard = 2, .tensor_parallel = 2},
                                           {.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    SCOPED_TRACE(cat(mesh.world_size(), " ranks, tensor ", mesh.tensor_parallel, ", shard ", mesh.data_parallel_shard));
    expect_same(train({.mesh = mesh, .schedule = OneFOneBScheduleConfig{}, .own_optimizer = &muon}), expected);
  }
}

}  // namespace
}  // namespace d9d::test::whole_matrices_test
