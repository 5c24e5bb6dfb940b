// Redistributes from any layout to any other over random meshes and shapes and compares with plain tensors. Values are
// integers, or doubles that hold integers: equality is exact, whatever the order of additions.
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/core/launch/thread_ranks.h"

#include "tests/core/dtensor/layout_oracle.h"

namespace d9d::redistribute_fuzz_test {
namespace {

constexpr std::int64_t kDivisible = 840;  // divisible by every number of ranks up to 8, so that averages stay integers

struct Layouts {
  std::vector<MeshAxis> axes;
  std::vector<std::int64_t> shape;
  Placements from;
  Placements to;
};

std::string describe(const Layouts& layouts) {
  std::string text = cat("shape ", at::IntArrayRef(layouts.shape), ", axes");
  for (std::size_t i = 0; i < layouts.axes.size(); ++i) {
    text += cat(" [", layouts.axes[i].size, ": ", to_string(layouts.from[i]), " -> ", to_string(layouts.to[i]), "]");
  }
  return text;
}

std::int64_t num_ranks(const std::vector<MeshAxis>& axes) {
  std::int64_t product = 1;
  for (const MeshAxis& axis : axes) product *= axis.size;
  return product;
}

std::int64_t draw(std::int64_t begin, std::int64_t end) { return *rc::gen::inRange(begin, end); }

std::vector<MeshAxis> draw_axes() {
  std::vector<MeshAxis> axes;
  for (std::int64_t count = draw(1, 4), ranks = 1; count > 0; --count) {
    axes.push_back({.name = cat("axis", count), .size = draw(1, 8 / ranks + 1)});
    ranks *= axes.back().size;
  }
  return axes;
}

Placements draw_placements(const std::vector<MeshAxis>& axes, const std::vector<std::int64_t>& shape,
                           const std::vector<ReduceOp>& ops) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  const std::int64_t offset = draw(0, 6);
  const std::int64_t ranks = num_ranks(axes);
  const FlatShard flat = {.padded_numel = ((offset + numel) / ranks + draw(1, 3)) * ranks, .offset_in_unit = offset};
  Placements placements;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    switch (draw(0, 6)) {
      case 0:
        placements.emplace_back(Replicate{});
        break;
      case 1:
        placements.emplace_back(Partial{ops[static_cast<std::size_t>(draw(0, std::ssize(ops)))]});
        break;
      case 2:
        placements.emplace_back(flat);
        break;
      default:
        placements.emplace_back(shape.empty() ? Placement(flat)
                                              : Shard{.dim = draw(0, std::ssize(shape)), .unit = draw(1, 4)});
    }
  }
  return placements;
}

Layouts draw_layouts(const std::vector<ReduceOp>& ops) {
  Layouts layouts = {.axes = draw_axes()};
  for (std::int64_t dims = draw(0, 4); dims > 0; --dims) layouts.shape.push_back(draw(0, 8));
  layouts.from = draw_placements(layouts.axes, layouts.shape, ops);
  layouts.to = draw_placements(layouts.axes, layouts.shape, ops);
  return layouts;
}

// A tensor over the ranks whose complete value every rank knows.
struct Known {
  Known(const Layouts& layouts, const Placements& placements, const DeviceMesh& mesh, at::ScalarType dtype,
        std::uint32_t seed) {
    std::vector<std::int64_t> summand_shape;  // one index for each Partial axis
    std::vector<ReduceOp> ops;
    std::vector<at::indexing::TensorIndex> mine;
    for (std::size_t i = 0; i < placements.size(); ++i) {
      const auto* const partial = std::get_if<Partial>(&placements[i]);
      if (partial == nullptr) continue;
      summand_shape.push_back(mesh.axes()[i].size);
      ops.push_back(partial->op);
      mine.emplace_back(mesh.coordinate()[i]);
    }
    summand_shape.insert(summand_shape.end(), layouts.shape.begin(), layouts.shape.end());
    std::mt19937 random(seed);
    value = at::empty(summand_shape, at::kLong);
    auto* const data = value.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < value.numel(); ++i)
      data[i] = (static_cast<std::int64_t>(random() % 2001) - 1000) * kDivisible;
    value = value.to(dtype);
    mine.emplace_back(at::indexing::Ellipsis);
    local = test::local_of(value.index(mine), mesh, placements);
    for (const ReduceOp op : ops) {
      if (op == ReduceOp::kSum) value = value.sum(0);
      if (op == ReduceOp::kAvg) value = value.mean(0);
      if (op == ReduceOp::kMax) value = value.amax(0);
      if (op == ReduceOp::kMin) value = value.amin(0);
    }
  }
  at::Tensor value;
  at::Tensor local;
};

bool has_partial(const Placements& placements) {
  return std::ranges::any_of(placements, [](const Placement& one) { return std::holds_alternative<Partial>(one); });
}

void expect_equal(const char* what, const at::Tensor& actual, const at::Tensor& expected, const Layouts& layouts) {
  D9D_ASSERT(actual.sizes() == expected.sizes() && at::equal(actual, expected), what, " of ", describe(layouts),
             ": expected ", expected, ", got ", actual);
}

void expect_redistributes(const Layouts& layouts, at::ScalarType dtype, std::uint32_t seed) {
  run_thread_ranks(num_ranks(layouts.axes), [&](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh("fuzz", layouts.axes, world);
    const Known known(layouts, layouts.from, mesh, dtype, seed);
    const DTensor x = {.local = known.local, .mesh = mesh, .placements = layouts.from, .global_shape = layouts.shape};
    const DTensor y = redistribute(x, layouts.to);
    if (!has_partial(layouts.to)) {
      expect_equal("local part", y.local, test::local_of(known.value, mesh, layouts.to), layouts);
    }
    expect_equal("whole", full_tensor(y), known.value, layouts);
    const DTensor again = distribute(known.value, mesh, layouts.to);
    expect_equal("whole of distribute()", full_tensor(again), known.value, layouts);
  });
}

TEST(RedistributeFuzz, Integers_arrive_exactly) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<ReduceOp> ops = {*rc::gen::element(ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin)};
    expect_redistributes(draw_layouts(ops), at::kLong, *rc::gen::arbitrary<std::uint32_t>());
  }));
}

TEST(RedistributeFuzz, Sums_and_averages_arrive_exactly) {
  EXPECT_TRUE(rc::check([] {
    expect_redistributes(draw_layouts({ReduceOp::kSum, ReduceOp::kAvg}), at::kDouble,
                         *rc::gen::arbitrary<std::uint32_t>());
  }));
}

Placements draw_gradient_placements(const Placements& placements) {
  Placements gradient = placements;
  for (Placement& one : gradient) {
    const bool is_cut = std::holds_alternative<Shard>(one) || std::holds_alternative<FlatShard>(one);
    if (!is_cut) one = *rc::gen::arbitrary<bool>() ? Placement(Partial{}) : Placement(Replicate{});
  }
  return gradient;
}

double num_averaged(const Placements& placements, const DeviceMesh& mesh) {
  double ranks = 1.0;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (placements[i] == Placement(Partial{ReduceOp::kAvg})) ranks *= static_cast<double>(mesh.axes()[i].size);
  }
  return ranks;
}

// The gradient of the whole tensor must be the same on both sides of a redistribution.
TEST(RedistributeFuzz, Gradients_arrive_exactly) {
  EXPECT_TRUE(rc::check([] {
    const Layouts layouts = draw_layouts({ReduceOp::kSum, ReduceOp::kAvg});
    const Placements arriving = draw_gradient_placements(layouts.to);
    const Placements leaving = draw_gradient_placements(layouts.from);
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    run_thread_ranks(num_ranks(layouts.axes), [&](const std::shared_ptr<World>& world) {
      const DeviceMesh mesh("fuzz", layouts.axes, world);
      DTensor x = {.local = Known(layouts, layouts.from, mesh, at::kDouble, seed).local,
                   .mesh = mesh,
                   .placements = layouts.from,
                   .global_shape = layouts.shape};
      x.local.set_requires_grad(true);
      const DTensor y =
          redistribute(x, layouts.to, {.gradient_placements = arriving, .input_gradient_placements = leaving});
      const Known gradient(layouts, arriving, mesh, at::kDouble, seed + 1);  // the gradient of y's value
      y.local.backward(gradient.local / num_averaged(layouts.to, mesh));
      const DTensor result = {.local = x.local.grad() * num_averaged(layouts.from, mesh),
                              .mesh = mesh,
                              .placements = leaving,
                              .global_shape = layouts.shape};
      expect_equal("gradient", full_tensor(result), gradient.value, layouts);
    });
  }));
}

}  // namespace
}  // namespace d9d::redistribute_fuzz_test
