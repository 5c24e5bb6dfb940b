// Muon steps matrices of any layout as one rank does, and its state is read on another mesh.
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include "d9d/base/rounding.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/optim/muon.h"

#include "tests/support/compare.h"
#include "tests/support/ranks.h"

namespace d9d::test::muon_layout_test {
namespace {

using enum ParameterRole;

struct Whole {
  std::string name;
  std::vector<std::int64_t> shape;
  ParameterRole role;
};

// Sizes that no number of ranks divides.
const std::vector<Whole>& model() {
  static const std::vector<Whole> parameters = {{"embedding", {11, 6}, kEmbedding},
                                                {"q", {7, 6}, kLinear},
                                                {"o", {6, 7}, kLinear},
                                                {"norm", {6}, kNorm},
                                                {"experts", {5, 6, 3}, kGroupedLinear},
                                                {"up", {13, 6}, kLinear},
                                                {"down", {6, 13}, kUnknown},
                                                {"row", {1, 5}, kLinear}};
  return parameters;
}

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor values(std::size_t index, const std::vector<std::int64_t>& shape, int step) {
  const at::Tensor positions = at::arange(c10::multiply_integers(shape), at::kDouble);
  const double begin = static_cast<double>(index) * 10 + step * 0.61;
  return at::cos(positions * positions * 0.37 + begin).view(shape);
}

// A mesh and how a Linear, a GroupedLinear and others lie on it; flat shards get their places in one unit.
struct Lay {
  std::vector<MeshAxis> axes;
  Placements matrices;
  Placements experts;
  Placements others;
};

// The parameters of a rank, as slices of one flat unit where the placements have a FlatShard.
std::vector<NamedParameter> parameters_of(const Lay& lay, const DeviceMesh& mesh) {
  std::vector<NamedParameter> result;
  std::int64_t num_shards = 1, offset = 0;
  const auto placements_of = [&](const Whole& whole) {
    if (whole.shape.size() == 3) return lay.experts;
    return whole.shape.size() == 2 && whole.role != kEmbedding ? lay.matrices : lay.others;
  };
  std::vector<std::int64_t> offsets;
  for (const Whole& whole : model()) {
    const std::vector<std::int64_t> first(mesh.axes().size());  // the rank with the largest part
    offsets.push_back(offset);
    offset += local_box(whole.shape, mesh, placements_of(whole), first).numel();
  }
  for (std::size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    if (std::holds_alternative<FlatShard>(lay.others[axis])) num_shards *= mesh.axes()[axis].size;
  }
  for (std::size_t i = 0; i < model().size(); ++i) {
    const Whole& whole = model()[i];
    Placements placements = placements_of(whole);
    for (Placement& placement : placements) {
      if (!std::holds_alternative<FlatShard>(placement)) continue;
      placement = FlatShard{.padded_numel = round_up(offset, num_shards), .offset_in_unit = offsets[i]};
    }
    const at::Tensor start = values(i, whole.shape, /*step=*/-1);
    result.push_back({.name = whole.name,
                      .tensor = distribute(start, mesh, placements).local.clone().requires_grad_(),
                      .global_shape = whole.shape,
                      .mesh = mesh,
                      .placements = placements,
                      .role = whole.role});
  }
  return result;
}

struct Trained {
  Tensors parameters;
  Tensors state;
};

constexpr int kSteps = 4;

// Steps [begin, end) of training, after reading `state` and `parameters` of `from`.
Trained train(const Lay& lay, const MuonConfig& config, RankBackend backend = RankBackend::kThreads, int begin = 0,
              int end = kSteps, const Trained& from = {}) {
  Trained result;
  std::mutex mutex;
  std::int64_t num_ranks = 1;
  for (const MeshAxis& axis : lay.axes) num_ranks *= axis.size;
  run_ranks(backend, num_ranks, [&](World& world) {
    const DeviceMesh mesh("ranks", lay.axes, borrowed(world));
    const std::vector<NamedParameter> leaves = parameters_of(lay, mesh);
    Muon optimizer(leaves, config);
    const at::NoGradGuard no_grad;
    const auto part_of = [&](const at::Tensor& whole, const DTensor& like) {
      return like.mesh.axes().empty() ? whole : distribute(whole, like.mesh, like.placements).local.view_as(like.local);
    };
    for (const auto& [name, entry] : optimizer.state_dict()) {
      if (!from.state.empty()) entry.local.copy_(part_of(from.state.at(name), entry));
    }
    for (const NamedParameter& leaf : leaves) {
      if (!from.parameters.empty())
        leaf.tensor.copy_(part_of(from.parameters.at(leaf.name), leaf.laid_out(leaf.tensor)));
    }
    for (int step = begin; step < end; ++step) {
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        const NamedParameter& leaf = leaves[i];
        const bool is_absent = leaf.name == "o" && step == 2;
        const at::Tensor grad = values(i, leaf.global_shape, step);
        leaf.tensor.mutable_grad() =
            is_absent ? at::Tensor() : distribute(grad, mesh, leaf.placements).local.clone().view_as(leaf.tensor);
      }
      optimizer.step(config.lr, at::full({}, 0.5, at::kDouble));
    }
    Trained own;
    for (const NamedParameter& leaf : leaves) {
      own.parameters[leaf.name] = full_tensor(leaf.laid_out(leaf.tensor.detach()));
    }
    for (const auto& [name, entry] : optimizer.state_dict()) {
      own.state[name] = entry.mesh.axes().empty() ? entry.local : full_tensor(entry);
    }
    const std::lock_guard lock(mutex);
    if (result.parameters.empty()) result = own;
    for (const auto& [name, whole] : own.parameters) EXPECT_TRUE(at::equal(whole, result.parameters.at(name))) << name;
  });
  return result;
}

void expect_same(const Trained& actual, const Trained& expected, const Tolerance& allowed) {
  expect_all_close(actual.parameters, expected.parameters, allowed);
  expect_all_close(actual.state, expected.state, allowed);
}

const Lay kOne = {.axes = {{"shard", 1}}, .matrices = {Replicate{}}, .experts = {Replicate{}}, .others = {Replicate{}}};
const Placement kFlat = FlatShard{};

Lay flat(std::int64_t num_ranks) { return {{{"shard", num_ranks}}, {kFlat}, {kFlat}, {kFlat}}; }

const std::vector<Lay>& lays() {
  static const std::vector<Lay> all = {
      flat(2),
      flat(4),
      flat(7),
      {{{"tp", 2}}, {Shard{0}}, {Shard{2}}, {Replicate{}}},
      {{{"tp", 3}}, {Shard{1}}, {Shard{1}}, {Replicate{}}},
      {{{"ep", 2}}, {Replicate{}}, {Shard{0}}, {Replicate{}}},
      {{{"replicate", 2}, {"shard", 2}}, {Replicate{}, kFlat}, {Replicate{}, kFlat}, {Replicate{}, kFlat}},
      {{{"shard", 2}, {"tp", 2}}, {kFlat, Shard{0}}, {kFlat, Shard{1}}, {kFlat, Replicate{}}},
      {{{"shard", 3}, {"tp", 2}}, {kFlat, Shard{1}}, {kFlat, Shard{2}}, {kFlat, Replicate{}}},
      {{{"shard", 2}, {"ep", 2}}, {kFlat, kFlat}, {kFlat, Shard{0}}, {kFlat, kFlat}},
      {{{"a", 2}, {"b", 2}}, {Shard{0}, Shard{1}}, {Shard{0}, Shard{2}}, {Replicate{}, Replicate{}}}};
  return all;
}

TEST(MuonLayout, Steps_as_on_one_rank_on_every_layout) {
  for (const std::int64_t bucket_size_mb : {64, 0}) {
    const MuonConfig config{.lr = 0.05, .bucket_size_mb = bucket_size_mb};
    const Trained expected = train(kOne, config);
    for (std::size_t i = 0; i < lays().size(); ++i) {
      SCOPED_TRACE("layout " + std::to_string(i) + ", bucket " + std::to_string(bucket_size_mb));
      expect_same(train(lays()[i], config), expected, tolerance("fp64"));
    }
  }
}

TEST(MuonLayout, Steps_as_on_one_rank_over_gloo) {
  const MuonConfig config{.lr = 0.05, .bucket_size_mb = 0};
  expect_same(train(lays()[8], config, RankBackend::kGloo), train(kOne, config), tolerance("fp64"));
}

TEST(MuonLayout, Goes_on_from_its_state_on_another_mesh) {
  const MuonConfig config{.lr = 0.05};
  const Trained expected = train(kOne, config);
  const Trained half = train(flat(4), config, RankBackend::kThreads, 0, 2);
  expect_same(train(lays()[8], config, RankBackend::kThreads, 2, kSteps, half), expected, tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::test::muon_layout_test
