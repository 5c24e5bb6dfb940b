// Compares every collective with a model that runs on one thread, on all backends.
#include "d9d/core/communicator/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/device/side_stream.h"

#include "tests/support/gpu_ranks.h"
#include "tests/support/ranks.h"

namespace d9d::test::communicator_test {
namespace {

struct Case {
  RankBackend backend;
  std::int64_t num_ranks;
};

class Collective : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().backend == RankBackend::kNccl && !has_gpus(num_ranks())) {
      GTEST_SKIP() << "needs " << num_ranks() << " GPUs";
    }
  }
  // Runs `body` with the group of all ranks.
  static void run(const std::function<void(Communicator&)>& body) {
    run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
      const auto all = world.communicator(group_of(world, "all"));
      body(*all);
    });
  }
  static std::int64_t num_ranks() { return GetParam().num_ranks; }
};

const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kLong};
const std::vector<std::int64_t> kSizes = {0, 1, 7, 64};

// Small integers, different for each rank and element: sums of a few of them are exact in every dtype.
at::Tensor values_of(std::int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::int64_t numel = c10::multiply_integers(sizes);
  return ((at::arange(numel, at::kLong) * 7 + rank * 5) % 11 - 3).view(sizes).to(dtype);
}

at::Tensor values_on(const Communicator& group, std::int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  return values_of(rank, sizes, dtype).to(group.device());
}

at::TensorOptions options_of(const Communicator& group, at::ScalarType dtype) {
  return at::TensorOptions(group.device()).dtype(dtype);
}

at::Tensor model_of_reduction(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const at::Tensor all = at::stack(inputs).to(at::kDouble);
  switch (op) {
    case ReduceOp::kSum:
      return all.sum(0).to(inputs[0].scalar_type());
    case ReduceOp::kAvg:
      return (all.sum(0) / static_cast<double>(inputs.size())).to(inputs[0].scalar_type());
    case ReduceOp::kMax:
      return std::get<0>(all.max(0)).to(inputs[0].scalar_type());
    case ReduceOp::kMin:
      break;
  }
  return std::get<0>(all.min(0)).to(inputs[0].scalar_type());
}

std::vector<ReduceOp> ops_of(at::ScalarType dtype) {
  if (dtype == at::kLong) return {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
  return {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin};
}

void expect_same(const at::Tensor& on_device, const at::Tensor& expected) {
  const at::Tensor actual = on_device.cpu();
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(actual, expected)) << actual << "\nexpected\n" << expected;
}

// An average divides a sum of W terms by W, which rounds once, in the dtype.
void expect_reduced(const at::Tensor& on_device, const at::Tensor& expected, ReduceOp op) {
  const at::Tensor actual = on_device.cpu();
  if (op != ReduceOp::kAvg) return expect_same(actual, expected);
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  const double rounding = actual.scalar_type() == at::kBFloat16 ? 1.0 / 128 : 1e-6;
  EXPECT_TRUE(at::allclose(actual.to(at::kDouble), expected.to(at::kDouble), rounding, 0)) << actual << expected;
}

TEST_P(Collective, All_reduce_is_the_reduction_everywhere) {
  run([](Communicator& group) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::int64_t size : kSizes) {
        for (const ReduceOp op : ops_of(dtype)) {
          std::vector<at::Tensor> inputs;
          for (std::int64_t i = 0; i < group.size(); ++i) inputs.push_back(values_of(i, {size}, dtype));
          const at::Tensor tensor = values_on(group, group.rank(), {size}, dtype);
          group.all_reduce(tensor, op).wait();
          expect_reduced(tensor, model_of_reduction(inputs, op), op);
        }
      }
    }
  });
}

TEST_P(Collective, All_gather_is_the_concatenation) {
  run([](Communicator& group) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::int64_t size : kSizes) {
        std::vector<at::Tensor> inputs;
        for (std::int64_t i = 0; i < group.size(); ++i) inputs.push_back(values_of(i, {size, 3}, dtype));
        const at::Tensor output = at::empty({group.size() * size, 3}, options_of(group, dtype));
        group.all_gather(output, inputs[static_cast<std::size_t>(group.rank())].to(group.device())).wait();
        expect_same(output, at::cat(inputs));
      }
    }
  });
}

TEST_P(Collective, All_gather_takes_its_own_part_of_the_output) {
  run([](Communicator& group) {
    const at::Tensor output = at::zeros({group.size() * 5}, options_of(group, at::kDouble));
    const at::Tensor mine = output.narrow(0, group.rank() * 5, 5);
    mine.copy_(values_of(group.rank(), {5}, at::kDouble));
    group.all_gather(output, mine).wait();
    std::vector<at::Tensor> inputs;
    for (std::int64_t i = 0; i < group.size(); ++i) inputs.push_back(values_of(i, {5}, at::kDouble));
    expect_same(output, at::cat(inputs));
  });
}

TEST_P(Collective, Reduce_scatter_is_a_part_of_the_reduction) {
  run([](Communicator& group) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::int64_t size : kSizes) {
        for (const ReduceOp op : ops_of(dtype)) {
          std::vector<at::Tensor> inputs;
          for (std::int64_t i = 0; i < group.size(); ++i) inputs.push_back(values_of(i, {group.size() * size}, dtype));
          const at::Tensor output = at::empty({size}, options_of(group, dtype));
          group.reduce_scatter(output, values_on(group, group.rank(), {group.size() * size}, dtype), op).wait();
          expect_reduced(output, model_of_reduction(inputs, op).narrow(0, group.rank() * size, size), op);
        }
      }
    }
  });
}

TEST_P(Collective, Reduce_scatter_takes_its_own_part_of_the_input) {
  run([](Communicator& group) {
    std::vector<at::Tensor> inputs;
    for (std::int64_t i = 0; i < group.size(); ++i) inputs.push_back(values_of(i, {group.size() * 5}, at::kDouble));
    const at::Tensor input = values_on(group, group.rank(), {group.size() * 5}, at::kDouble);
    const at::Tensor output = input.narrow(0, group.rank() * 5, 5);
    group.reduce_scatter(output, input, ReduceOp::kSum).wait();
    expect_same(output, model_of_reduction(inputs, ReduceOp::kSum).narrow(0, group.rank() * 5, 5));
  });
}

// The number of rows that rank i sends to rank j: zero for some pairs.
std::int64_t num_rows(std::int64_t i, std::int64_t j) { return (i * 3 + j * 2) % 4; }

TEST_P(Collective, All_to_all_with_uneven_and_empty_splits_is_a_transposition) {
  run([](Communicator& group) {
    for (const at::ScalarType dtype : kDtypes) {
      const auto input_of = [&](std::int64_t i) {
        std::int64_t rows = 0;
        for (std::int64_t j = 0; j < group.size(); ++j) rows += num_rows(i, j);
        return values_of(i, {rows, 3}, dtype);
      };
      std::vector<std::int64_t> input_splits;
      std::vector<std::int64_t> output_splits;
      std::vector<at::Tensor> expected;
      for (std::int64_t i = 0; i < group.size(); ++i) {
        input_splits.push_back(num_rows(group.rank(), i));
        output_splits.push_back(num_rows(i, group.rank()));
        std::int64_t begin = 0;
        for (std::int64_t j = 0; j < group.rank(); ++j) begin += num_rows(i, j);
        expected.push_back(input_of(i).narrow(0, begin, output_splits.back()));
      }
      const at::Tensor output = at::empty_like(at::cat(expected), group.device());
      group.all_to_all(output, input_of(group.rank()).to(group.device()), output_splits, input_splits).wait();
      expect_same(output, at::cat(expected));
    }
  });
}

TEST_P(Collective, All_to_all_of_nothing_is_nothing) {
  run([](Communicator& group) {
    const std::vector<std::int64_t> none(static_cast<std::size_t>(group.size()), 0);
    const at::Tensor output = at::empty({0, 4}, options_of(group, at::kFloat));
    group.all_to_all(output, at::empty_like(output), none, none).wait();
    EXPECT_EQ(output.numel(), 0);
  });
}

TEST_P(Collective, Broadcast_gather_and_scatter_move_the_tensors_of_the_root) {
  run([](Communicator& group) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::int64_t size : kSizes) {
        for (const std::int64_t root : {std::int64_t{0}, group.size() - 1}) {
          const at::Tensor mine = values_on(group, group.rank(), {size}, dtype);
          group.broadcast(mine, root).wait();
          expect_same(mine, values_of(root, {size}, dtype));

          std::vector<at::Tensor> tensors;
          for (std::int64_t i = 0; i < group.size() && group.rank() == root; ++i) {
            tensors.push_back(at::zeros({size}, options_of(group, dtype)));
          }
          group.gather(tensors, values_on(group, group.rank(), {size}, dtype), root).wait();
          for (std::size_t i = 0; i < tensors.size(); ++i) {
            expect_same(tensors[i], values_of(static_cast<std::int64_t>(i), {size}, dtype));
            tensors[i] += 1;
          }
          const at::Tensor back = at::zeros({size}, options_of(group, dtype));
          group.scatter(back, tensors, root).wait();
          expect_same(back, values_of(group.rank(), {size}, dtype) + 1);
        }
      }
    }
  });
}

TEST_P(Collective, Exchange_delivers_messages_between_two_ranks_in_order) {
  run([](Communicator& group) {
    for (const std::int64_t size : kSizes) {
      // Two messages to each rank, including itself, and two from each.
      std::vector<PointToPoint> messages;
      for (std::int64_t peer = 0; peer < group.size(); ++peer) {
        for (const std::int64_t number : {0, 1}) {
          messages.push_back({.direction = PointToPoint::Direction::kReceive,
                              .tensor = at::zeros({size}, options_of(group, at::kFloat)),
                              .peer = peer});
          messages.push_back({.direction = PointToPoint::Direction::kSend,
                              .tensor = values_on(group, group.rank() * 100 + peer * 10 + number, {size}, at::kFloat),
                              .peer = peer});
        }
      }
      group.exchange(messages).wait();
      for (std::size_t i = 0; i < messages.size(); i += 2) {
        const std::int64_t number = static_cast<std::int64_t>(i / 2 % 2);
        expect_same(messages[i].tensor,
                    values_of(messages[i].peer * 100 + group.rank() * 10 + number, {size}, at::kFloat));
      }
    }
  });
}

TEST_P(Collective, Exchange_between_two_ranks_leaves_the_others_alone) {
  if (num_ranks() < 2) GTEST_SKIP() << "needs two ranks";
  run([](Communicator& group) {
    const at::Tensor tensor = values_on(group, group.rank(), {3}, at::kLong);
    if (group.rank() == 0) {
      group.exchange({{.direction = PointToPoint::Direction::kSend, .tensor = tensor, .peer = group.size() - 1}})
          .wait();
    }
    if (group.rank() == group.size() - 1) {
      group.exchange({{.direction = PointToPoint::Direction::kReceive, .tensor = tensor, .peer = 0}}).wait();
      expect_same(tensor, values_of(0, {3}, at::kLong));
    }
    group.barrier();
  });
}

TEST_P(Collective, Operations_that_were_started_together_all_finish) {
  run([](Communicator& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (std::int64_t i = 0; i < 20; ++i) {
      tensors.push_back(at::full({5}, i + group.rank(), options_of(group, at::kLong)));
      works.push_back(group.all_reduce(tensors.back(), ReduceOp::kSum));
    }
    for (Work& work : works) work.wait();
    for (std::int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(tensors[static_cast<std::size_t>(i)].sum().item<std::int64_t>(),
                5 * (group.size() * i + group.size() * (group.size() - 1) / 2));
    }
  });
}

// As for gradients: the tensor is computed and reduced on a side stream and read on the stream that waits.
TEST_P(Collective, Results_of_a_side_stream_are_there_for_who_waits) {
  run([](Communicator& group) {
    const SideStream side(group.device());
    at::Tensor sum;
    Work work;
    (void)side.run([&] {
      sum = at::full({1 << 20}, 0.5, options_of(group, at::kDouble));
      for (int i = 0; i < 20; ++i) sum.mul_(2).sub_(0.5);  // keeps the value and occupies the stream for a while
      sum.add_(static_cast<double>(group.rank()));
      work = group.all_reduce(sum, ReduceOp::kSum);
    });
    work.wait();
    const double expected = 0.5 * static_cast<double>(group.size() * group.size());
    EXPECT_TRUE((sum == expected).all().item<bool>()) << sum.min() << " to " << sum.max() << ", not " << expected;
  });
}

TEST_P(Collective, Refuses_arguments_that_do_not_fit) {
  run([](Communicator& group) {
    const at::Tensor three = at::zeros({3}, group.device());
    EXPECT_THROW((void)group.all_reduce(at::zeros({2, 3}, group.device()).t(), ReduceOp::kSum), ConfigError);
    EXPECT_THROW((void)group.all_reduce(at::zeros({3}, options_of(group, at::kLong)), ReduceOp::kAvg), ConfigError);
    EXPECT_THROW((void)group.all_gather(at::zeros({3 * group.size() + 1}, group.device()), three), ConfigError);
    EXPECT_THROW((void)group.reduce_scatter(three, at::zeros({3 * group.size()}, options_of(group, at::kDouble)),
                                            ReduceOp::kSum),
                 ConfigError);
    EXPECT_THROW((void)group.all_to_all(three, three, {}, {}), ConfigError);
    EXPECT_THROW((void)group.broadcast(three, group.size()), ConfigError);
    EXPECT_THROW((void)group.scatter(three, {three, three, three, three, three}, 0), ConfigError);
    EXPECT_THROW(
        (void)group.exchange({{.direction = PointToPoint::Direction::kSend, .tensor = three, .peer = group.size()}}),
        ConfigError);
    group.barrier();  // the ranks are still in step
  });
}

// Objects that were made before still work afterwards, in groups that ranks have used in different orders.
TEST_P(Collective, Disconnected_groups_refuse_operations_and_connect_again_under_the_same_objects) {
  run_ranks(GetParam().backend, GetParam().num_ranks, [](World& world) {
    const auto own = world.communicator({.name = "own", .ranks = {world.rank()}, .index = 0});
    const auto all = world.communicator(group_of(world, "all"));
    const at::Tensor value = at::full({3}, static_cast<double>(1 + world.rank()), options_of(*all, at::kDouble));
    const auto sum = [&](Communicator& group) {
      const at::Tensor total = value.clone();
      group.all_reduce(total, ReduceOp::kSum).wait();
      return total.cpu()[0].item<double>();
    };
    const double expected = static_cast<double>(world.size() * (world.size() + 1)) / 2;
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(sum(*all), expected);
      EXPECT_EQ(sum(*own), 1.0 + static_cast<double>(world.rank()));
      world.disconnect();
      EXPECT_FALSE(world.is_connected());
      EXPECT_THROW((void)sum(*all), StateError);
      EXPECT_THROW(all->barrier(), StateError);
      EXPECT_THROW((void)all->exchange({{.direction = PointToPoint::Direction::kSend, .tensor = value, .peer = 0}}),
                   StateError);
      EXPECT_THROW((void)world.communicator({.name = "new", .ranks = {world.rank()}, .index = 0, .lane = 1}),
                   StateError);
      EXPECT_THROW(world.disconnect(), StateError);
      all->throw_if_failed();
      EXPECT_FALSE(all->has_failed());
      world.set_timeout(std::chrono::seconds(30));
      world.reconnect();
      EXPECT_THROW(world.reconnect(), StateError);
    }
    EXPECT_EQ(sum(*all), expected);
    all->barrier();
  });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const RankBackend backend : {RankBackend::kThreads, RankBackend::kGloo}) {
    for (const std::int64_t num_ranks : {1, 2, 3, 4}) cases.push_back({backend, num_ranks});
  }
  return cases;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return cat(to_string(info.param.backend), "_", info.param.num_ranks);
}

INSTANTIATE_TEST_SUITE_P(Backends, Collective, ::testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Nccl, Collective,
                         ::testing::Values(Case{RankBackend::kNccl, 1}, Case{RankBackend::kNccl, 2},
                                           Case{RankBackend::kNccl, 4}, Case{RankBackend::kNccl, 8}),
                         name_of);

}  // namespace
}  // namespace d9d::test::communicator_test
