#include "d9d/core/dtensor/redistribute.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/dtensor/redistribute_steps.h"
#include "d9d/core/launch/thread_ranks.h"
#include "d9d/core/rng/element_random.h"

#include "tests/core/dtensor/layout_oracle.h"
#include "tests/support/compare.h"

namespace d9d::redistribute_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t key) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  fill_normal(tensor, whole_window(tensor), {.key = key}, 0.0, 1.0);
  return tensor;
}

// Runs body(mesh) on the ranks of a mesh. Inequality throws, so that no rank waits for another that has left its test.
void on_ranks(const std::vector<MeshAxis>& axes, const std::function<void(const DeviceMesh& mesh)>& body) {
  std::int64_t num_ranks = 1;
  for (const MeshAxis& axis : axes) num_ranks *= axis.size;
  run_thread_ranks(num_ranks, [&](const std::shared_ptr<World>& world) { body(DeviceMesh("m", axes, world)); });
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  D9D_ASSERT(actual.sizes() == expected.sizes() && at::equal(actual, expected), "expected ", expected, ", got ",
             actual);
}

TEST(Distribute, Gives_each_rank_its_part) {
  const at::Tensor full = random_tensor({10, 3}, 1);
  on_ranks({{"dp", 2}, {"tp", 4}}, [&](const DeviceMesh& mesh) {
    const DTensor x = distribute(full, mesh, {Shard{1}, Shard{0}});
    expect_equal(x.local, test::local_of(full, mesh, {Shard{1}, Shard{0}}));
    D9D_ASSERT(x.local.is_contiguous() && x.global_shape == full.sizes().vec(), "contiguous, with the whole's shape");
    expect_equal(full_tensor(x), full);
  });
}

TEST(Distribute, Communicates_nothing) {
  on_ranks({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    if (mesh.index() == 1) return;  // a collective of rank 0 would time out
    mesh.communicator()->set_timeout(std::chrono::milliseconds(1));
    (void)distribute(at::ones({4}), mesh, {Shard{0}});
    (void)distribute(at::ones({4}), mesh, {Partial{}});
  });
}

TEST(Distribute, Leaves_a_sum_on_the_first_coordinate) {
  on_ranks({{"tp", 3}}, [&](const DeviceMesh& mesh) {
    expect_equal(distribute(at::full({2}, 7), mesh, {Partial{}}).local, at::full({2}, mesh.index() == 0 ? 7 : 0));
    expect_equal(distribute(at::full({2}, 7), mesh, {Partial{ReduceOp::kMax}}).local, at::full({2}, 7));
  });
}

DeviceMesh mesh_of_zero(const std::vector<MeshAxis>& axes) {  // rank 0's; nothing is communicated
  DeviceMesh mesh;
  on_ranks(axes, [&](const DeviceMesh& one) {
    if (one.index() == 0) mesh = one;
  });
  return mesh;
}

TEST(TravelAxes, Are_those_whose_elements_must_move) {
  const DeviceMesh mesh = mesh_of_zero({{"a", 2}, {"b", 2}, {"c", 1}});
  const FlatShard flat = {.padded_numel = 64};
  const Replicate r;
  EXPECT_THAT(travel_axes(mesh, {r, r, r}, {Shard{0}, Shard{0}, Shard{1}}), IsEmpty());
  EXPECT_THAT(travel_axes(mesh, {Shard{0}, r, r}, {Shard{0}, Shard{0}, r}), IsEmpty());
  EXPECT_THAT(travel_axes(mesh, {Shard{0}, r, Shard{1}}, {r, r, r}), ElementsAre(0));
  EXPECT_THAT(travel_axes(mesh, {Shard{0}, Shard{1}, r}, {r, Shard{1}, r}), ElementsAre(0));
  EXPECT_THAT(travel_axes(mesh, {Shard{0}, Shard{0}, r}, {r, Shard{0}, r}), ElementsAre(0, 1));
  EXPECT_THAT(travel_axes(mesh, {r, Shard{0}, r}, {Shard{0}, Shard{0}, r}), ElementsAre(1));
  EXPECT_THAT(travel_axes(mesh, {Shard{0}, flat, r}, {r, flat, r}), ElementsAre(0, 1));
  EXPECT_THAT(travel_axes(mesh, {Partial{}, flat, r}, {r, flat, r}), IsEmpty());
}

// The description of rank 0's first operation: rank 1 calls a barrier instead, and the error names both operations.
std::string first_operation(const Placements& from, const Placements& to) {
  std::string text;
  on_ranks({{"a", 2}}, [&](const DeviceMesh& mesh) {
    try {
      if (mesh.index() == 0) {
        const std::vector<std::int64_t> shape = {4, 4};
        (void)redistribute({.local = at::ones(local_shape(shape, mesh, from)),
                            .mesh = mesh,
                            .placements = from,
                            .global_shape = shape},
                           to);
      }
      mesh.communicator()->barrier();
    } catch (const CommunicationError& error) {
      if (mesh.index() == 0) text = error.what();
    }
  });
  return text;
}

TEST(Redistribute, Takes_the_cheapest_operation) {
  EXPECT_EQ(first_operation({Replicate{}}, {Shard{1}}), "");
  EXPECT_EQ(first_operation({Replicate{}}, {Partial{}}), "");
  EXPECT_EQ(first_operation({Shard{0}}, {Shard{0}}), "");
  EXPECT_THAT(first_operation({Shard{1}}, {Replicate{}}), HasSubstr("all_gather(Float [8])"));
  EXPECT_THAT(first_operation({Partial{}}, {Replicate{}}), HasSubstr("all_reduce(sum, Float [4, 4])"));
  EXPECT_THAT(first_operation({Partial{}}, {Shard{1}}), HasSubstr("reduce_scatter(sum, Float [16])"));
  EXPECT_THAT(first_operation({Shard{0}}, {Shard{1}}), HasSubstr("all_to_all(Float"));
  EXPECT_THAT(first_operation({FlatShard{16, 0}}, {Replicate{}}), HasSubstr("all_gather"));
}

TEST(Redistribute, Skips_axes_of_one_rank) {
  on_ranks({{"one", 1}, {"two", 2}}, [&](const DeviceMesh& mesh) {
    if (mesh.index() == 1) return;
    const DTensor x = {
        .local = at::ones({4}), .mesh = mesh, .placements = {Partial{}, Replicate{}}, .global_shape = {4}};
    expect_equal(redistribute(x, {Shard{0}, Replicate{}}).local, at::ones({4}));
    expect_equal(redistribute(x, {FlatShard{4, 0}, Replicate{}}).local, at::ones({4}));
  });
}

TEST(Redistribute, Needs_no_job_on_a_mesh_without_axes) {
  const at::Tensor full = at::ones({4});
  EXPECT_TRUE(full_tensor(redistribute(distribute(full, DeviceMesh(), {}), {})).is_alias_of(full));
}

TEST(Redistribute, Takes_locals_of_any_strides) {
  const at::Tensor full = random_tensor({5, 4, 3}, 1);
  on_ranks({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    DTensor x = distribute(full, mesh, {Shard{1}});
    x.local = x.local.transpose(0, 2).contiguous().transpose(0, 2);
    D9D_ASSERT(!x.local.is_contiguous(), "the test needs strides");
    expect_equal(redistribute(x, {Shard{2}}).local, test::local_of(full, mesh, {Shard{2}}));
    expect_equal(full_tensor(x), full);
  });
}

// A feed-forward network with its weights cut over tp and the sequence cut outside of it, compared with one thread.
struct Network {
  at::Tensor x = random_tensor({7, 4}, 1);   // [positions, hidden]
  at::Tensor up = random_tensor({6, 4}, 2);  // [inner, hidden]
  at::Tensor down = random_tensor({4, 6}, 3);

  [[nodiscard]] static at::Tensor loss_of(const at::Tensor& y) { return (y * y.tanh()).sum(); }
};

enum class Backward { kWhole, kCheckpointed, kSplit };  // kSplit: the gradient of the input first, of weights later

void expect_gradients_of_tensor_parallel_network(Backward backward) {
  const Network net;
  for (const at::Tensor& leaf : {net.x, net.up, net.down}) leaf.set_requires_grad(true);
  Network::loss_of(at::linear(at::linear(net.x, net.up).tanh(), net.down)).backward();
  on_ranks({{"tp", 3}}, [&](const DeviceMesh& mesh) {
    const auto leaf = [&](const at::Tensor& full, Placement placement) {
      DTensor part = distribute(full, mesh, {placement});
      part.local = part.local.clone().set_requires_grad(true);
      return part;
    };
    const DTensor x = leaf(net.x, Shard{0});
    const DTensor up = leaf(net.up, Shard{0});
    const DTensor down = leaf(net.down, Shard{1});
    const auto body = [=](const at::Tensor& shard) {
      const DTensor whole =
          redistribute({.local = shard, .mesh = mesh, .placements = x.placements, .global_shape = x.global_shape},
                       {Replicate{}}, {.gradient_placements = Placements{Partial{}}});
      const at::Tensor summand = at::linear(at::linear(whole.local, up.local).tanh(), down.local);
      return redistribute({.local = summand, .mesh = mesh, .placements = {Partial{}}, .global_shape = {7, 4}},
                          {Shard{0}})
          .local;
    };
    const at::Tensor y = backward == Backward::kCheckpointed ? checkpoint(body, x.local) : body(x.local);
    const at::Tensor loss = Network::loss_of(y);
    if (backward == Backward::kSplit) {
      x.local.mutable_grad() = torch::autograd::grad({loss}, {x.local}, {}, /*retain_graph=*/true)[0];
      const auto grads = torch::autograd::grad({loss}, {up.local, down.local});
      up.local.mutable_grad() = grads[0];
      down.local.mutable_grad() = grads[1];
    } else {
      loss.backward();
    }
    const auto expect_gradient = [&](const char* name, const DTensor& part, const at::Tensor& expected) {
      const at::Tensor gradient = full_tensor(
          {.local = part.local.grad(), .mesh = mesh, .placements = part.placements, .global_shape = part.global_shape});
      if (mesh.index() == 0) test::expect_close(name, gradient, expected, test::tolerance("fp64"));
    };
    expect_gradient("x", x, net.x.grad());
    expect_gradient("up", up, net.up.grad());
    expect_gradient("down", down, net.down.grad());
  });
}

TEST(Redistribute, Gradients_of_a_tensor_parallel_network_equal_those_on_one_thread) {
  expect_gradients_of_tensor_parallel_network(Backward::kWhole);
}

TEST(Redistribute, Gradients_are_the_same_under_checkpoint) {
  expect_gradients_of_tensor_parallel_network(Backward::kCheckpointed);
}

TEST(Redistribute, Gradients_are_the_same_in_two_phases) {
  expect_gradients_of_tensor_parallel_network(Backward::kSplit);
}

TEST(Redistribute, Sums_gradients_that_copies_contributed) {  // identity forward, all_reduce backward
  on_ranks({{"tp", 2}}, [&](const DeviceMesh& mesh) {
    const at::Tensor leaf = at::ones({2}, at::kDouble).set_requires_grad(true);
    const DTensor x = {.local = leaf, .mesh = mesh, .placements = {Replicate{}}, .global_shape = {2}};
    const DTensor y = redistribute(x, {Replicate{}}, {.gradient_placements = Placements{Partial{}}});
    (y.local * static_cast<double>(mesh.index() + 1)).sum().backward();
    expect_equal(leaf.grad(), at::full({2}, 3.0, at::kDouble));
  });
}

std::string complaint(const Placements& from, const Placements& to, const RedistributeOptions& options = {}) {
  std::string text;
  on_ranks({{"a", 1}, {"b", 1}}, [&](const DeviceMesh& mesh) {
    const DTensor x = {
        .local = at::ones({4}).set_requires_grad(true), .mesh = mesh, .placements = from, .global_shape = {4}};
    try {
      (void)redistribute(x, to, options);
    } catch (const Error& error) {
      text = error.what();
    }
  });
  return text;
}

TEST(Redistribute, Refuses_what_has_no_meaning) {
  const Replicate r;
  EXPECT_THAT(complaint({r, r}, {r}), HasSubstr("one placement for each of 2 axes"));
  EXPECT_THAT(complaint({r, r}, {r, Shard{1}}), HasSubstr("expected a dim in [0, 1) to shard over axis 'b', got 1"));
  EXPECT_THAT(complaint({r, r}, {Partial{}, Partial{ReduceOp::kMax}}), HasSubstr("got partial(sum) and partial(max)"));
  EXPECT_THAT(complaint({r, r}, {FlatShard{8, 0}, FlatShard{9, 0}}), HasSubstr("the same flat shard on all axes"));
  EXPECT_THAT(complaint({r, r}, {r, FlatShard{4, 1}}), HasSubstr("room for 4 elements"));
  EXPECT_THAT(complaint({FlatShard{8, 0}, r}, {r, r}), IsEmpty());
}

TEST(Redistribute, Refuses_gradients_that_have_no_meaning) {
  const Replicate r;
  EXPECT_THAT(complaint({Partial{ReduceOp::kMax}, r}, {r, r}), HasSubstr("partial(max) on axis 0 has no gradient"));
  EXPECT_THAT(complaint({r, r}, {Shard{0}, r}, {.gradient_placements = Placements{r, r}}),
              HasSubstr("gradient of the result, which is shard(0) on axis 0, to be the same there, got replicate"));
  EXPECT_THAT(complaint({r, r}, {r, r}, {.input_gradient_placements = Placements{r, Shard{0}}}),
              HasSubstr("gradient of the input, which is replicate on axis 1, to be replicate or partial(sum)"));
}

TEST(Redistribute, Refuses_a_local_that_does_not_fit_its_layout) {
  on_ranks({{"a", 2}}, [&](const DeviceMesh& mesh) {
    const DTensor x = {.local = at::ones({4}), .mesh = mesh, .placements = {Shard{0}}, .global_shape = {7}};
    std::string text;
    try {
      if (mesh.index() == 1) (void)full_tensor(x);
    } catch (const StateError& error) {
      text = error.what();
    }
    D9D_ASSERT((text.find("of shape [3] for global shape [7] over mesh 'm', got [4]") != std::string::npos) ==
                   (mesh.index() == 1),
               text);
  });
}

TEST(Redistribute, Refuses_gradients_of_gradients) {
  on_ranks({{"a", 1}}, [&](const DeviceMesh& mesh) {
    const at::Tensor leaf = at::ones({4}).set_requires_grad(true);
    const DTensor x = {.local = leaf, .mesh = mesh, .placements = {Replicate{}}, .global_shape = {4}};
    EXPECT_THROW(redistribute(x, {Shard{0}}).local.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true),
                 UsageError);
  });
}

}  // namespace
}  // namespace d9d::redistribute_test
