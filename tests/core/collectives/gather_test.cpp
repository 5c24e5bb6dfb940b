#include "d9d/core/collectives/gather.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/core/collectives/group.h"
#include "tests/support/gpu_ranks.h"

namespace d9d::gather_test {
namespace {

using test::has_gpus;
using test::on_group;
using test::RankBackend;
using test::require_equal;
using test::to_string;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor of_rank(std::int64_t rank) { return at::arange(6).view({2, 3}) + 100 * rank; }
at::Tensor of_rank_and_shape(std::int64_t rank) {  // rank 0 has a scalar, rank 2 an empty tensor
  if (rank == 0) return at::full({}, 7, at::kLong);
  return at::arange(rank == 2 ? 0 : rank * 2).view({-1, 2}) + 100 * rank;
}

at::Tensor on(const Communicator& group, const at::Tensor& tensor) { return tensor.to(group.device()); }

using Expected = at::Tensor (*)(std::int64_t);

void require_all(const std::vector<at::Tensor>& tensors, std::int64_t size, Expected expected) {
  D9D_ASSERT(std::ssize(tensors) == size, "expected ", size, " tensors, got ", tensors.size());
  for (std::int64_t i = 0; i < size; ++i) require_equal(tensors[static_cast<std::size_t>(i)], expected(i));
}

class Gathers : public ::testing::TestWithParam<RankBackend> {
 protected:
  void SetUp() override {
    if (sizes().empty()) GTEST_SKIP() << "needs 2 GPUs";
  }
  // Sizes of groups; on NCCL those for which there are enough GPUs.
  static std::vector<std::int64_t> sizes() {
    std::vector<std::int64_t> all = {2, 4, 8};
    if (GetParam() != RankBackend::kNccl) all.push_back(1);
    std::erase_if(all, [](std::int64_t size) { return GetParam() == RankBackend::kNccl && !has_gpus(size); });
    return all;
  }
  static void on_two(const std::function<void(Communicator& group)>& body) {
    on_group(GetParam(), 2, [&](const auto& group) { body(*group); });
  }
  // Runs on groups of all sizes, with the first rank and the last as root.
  static void for_groups_and_roots(const std::function<void(Communicator& group, std::int64_t root)>& body) {
    for (const std::int64_t size : sizes()) {
      on_group(GetParam(), size, [&](const auto& group) {
        body(*group, 0);
        body(*group, size - 1);
      });
    }
  }
};

TEST_P(Gathers, Bring_every_tensor_to_the_root) {
  for_groups_and_roots([](Communicator& group, std::int64_t root) {
    const std::int64_t expected = group.rank() == root ? group.size() : 0;
    require_all(gather(on(group, of_rank(group.rank())), group, root), expected, of_rank);
    require_all(gather_variadic_shape(on(group, of_rank_and_shape(group.rank())), group, root), expected,
                of_rank_and_shape);
  });
}

TEST_P(Gathers, Bring_every_tensor_to_all) {
  for_groups_and_roots([](Communicator& group, std::int64_t /*root*/) {
    require_all(all_gather(on(group, of_rank(group.rank())), group), group.size(), of_rank);
    require_all(all_gather_variadic_shape(on(group, of_rank_and_shape(group.rank())), group), group.size(),
                of_rank_and_shape);
  });
}

TEST_P(Gathers, Take_scalars_and_strides) {
  on_two([](Communicator& group) {
    const at::Tensor scalar = on(group, at::full({}, group.rank()));
    const at::Tensor transposed = on(group, of_rank(group.rank())).t();
    require_equal(at::stack(all_gather(scalar, group)), at::arange(2));
    require_equal(all_gather(transposed, group)[1], of_rank(1).t());
    require_equal(all_gather_variadic_shape(transposed, group)[1], of_rank(1).t());
  });
}

// Calls each asynchronous form with a tensor that its rank overwrites before it waits.
void overwrite_what_was_sent(Communicator& group, std::int64_t root) {
  const std::int64_t expected = group.rank() == root ? group.size() : 0;
  const auto check = [&](const auto& start, std::int64_t size, Expected values) {
    const at::Tensor tensor = on(group, values(group.rank())).clone();
    PendingTensors pending = start(tensor);
    tensor.fill_(-1);
    require_all(pending.wait(), size, values);
  };
  check([&](const at::Tensor& x) { return gather_async(x, group, root); }, expected, of_rank);
  check([&](const at::Tensor& x) { return all_gather_async(x, group); }, group.size(), of_rank);
  check([&](const at::Tensor& x) { return gather_variadic_shape_async(x, group, root); }, expected, of_rank_and_shape);
  check([&](const at::Tensor& x) { return all_gather_variadic_shape_async(x, group); }, group.size(),
        of_rank_and_shape);
}

TEST_P(Gathers, Let_the_sender_overwrite_its_tensor_at_once) { for_groups_and_roots(overwrite_what_was_sent); }

// The thread backend copies before it returns. This one only keeps its arguments, as a device would, and does the work
// in wait().
class LazyCommunicator final : public Communicator {
 public:
  explicit LazyCommunicator(std::shared_ptr<Communicator> inner) : Communicator(inner->group()), inner_(inner) {}
  [[nodiscard]] at::Device device() const override { return inner_->device(); }
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return later([=, this] { return inner_->all_reduce(tensor, op); });
  }
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return later([=, this] { return inner_->all_gather(output, input); });
  }
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    return later([=, this] { return inner_->reduce_scatter(output, input, op); });
  }
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& output_splits,
                                const std::vector<std::int64_t>& input_splits) override {
    return later([=, this] { return inner_->all_to_all(output, input, output_splits, input_splits); });
  }
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root) override {
    return later([=, this] { return inner_->broadcast(tensor, root); });
  }
  [[nodiscard]] Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            std::int64_t root) override {
    return later([=, this] { return inner_->gather(outputs, input, root); });
  }
  [[nodiscard]] Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             std::int64_t root) override {
    return later([=, this] { return inner_->scatter(output, inputs, root); });
  }
  [[nodiscard]] Work exchange(const std::vector<PointToPoint>& messages) override {
    return later([=, this] { return inner_->exchange(messages); });
  }
  void barrier() override { inner_->barrier(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  static Work later(std::function<Work()> start) {
    return Work([start = std::move(start)] { start().wait(); });
  }
  std::shared_ptr<Communicator> inner_;
};

TEST(Gather, Lets_the_sender_overwrite_its_tensor_before_work_begins) {
  on_group(4, [](const auto& inner) {
    LazyCommunicator group(inner);
    overwrite_what_was_sent(group, /*root=*/3);
  });
}

TEST_P(Gathers, Give_the_root_a_copy_of_its_own) {
  on_two([](Communicator& group) {
    const at::Tensor mine = on(group, of_rank(group.rank())).clone();
    const std::vector<at::Tensor> tensors = gather_variadic_shape(mine, group, 0);
    mine.fill_(-1);
    if (group.rank() == 0) require_equal(tensors[0], of_rank(0));
  });
}

TEST(Gather, Refuses_a_root_outside_of_the_group) {
  EXPECT_THAT([] { on_group(2, [](const auto& group) { (void)gather(at::ones({1}), *group, 2); }); },
              ThrowsMessage<ConfigError>(HasSubstr("expected a root in [0, 2), a rank of group 'all', got 2")));
}

TEST(AllGather, Refuses_shapes_that_differ) {
  EXPECT_THAT([] { on_group(2, [](const auto& group) { (void)all_gather(at::ones({group->rank()}), *group); }); },
              ThrowsMessage<CommunicationError>(AllOf(HasSubstr("Float [0]"), HasSubstr("Float [1]"))));
}

TEST_P(Gathers, Refuse_dtypes_that_differ_on_all_ranks) {
  on_two([](Communicator& group) {
    const at::Tensor x = on(group, at::ones({2}, group.rank() == 0 ? at::kFloat : at::kLong));
    const auto refuses = [](const auto& call) {
      try {
        (void)call();
      } catch (const ConfigError& error) {
        return std::string(error.what()).find("got Float on rank 0 and Long on rank 1") != std::string::npos;
      }
      return false;
    };
    D9D_ASSERT(refuses([&] { return gather_variadic_shape(x, group, 0); }), "gather");
    D9D_ASSERT(refuses([&] { return all_gather_variadic_shape(x, group); }), "all_gather");
  });
}

TEST_P(Gathers, Bring_JSON_and_bytes_as_they_were) {
  const auto object = [](std::int64_t rank) -> nlohmann::json {
    if (rank == 1) return nlohmann::json::binary({0, 255, 10});
    return {{"rank", rank}, {"loss", 0.1 + static_cast<double>(rank)}, {"names", {"a", std::string("\0\n", 2)}}};
  };
  for_groups_and_roots([&](Communicator& group, std::int64_t root) {
    std::vector<nlohmann::json> expected;
    for (std::int64_t i = 0; i < group.size(); ++i) expected.push_back(object(i));
    D9D_ASSERT(all_gather_object(object(group.rank()), group) == expected, "all_gather_object");
    const auto gathered = gather_object(object(group.rank()), group, root);
    D9D_ASSERT(gathered == (group.rank() == root ? expected : std::vector<nlohmann::json>()), "gather_object");
  });
}

TEST_P(Gathers, Bring_numbers_that_are_none) {
  on_two([](Communicator& group) {
    const auto all = all_gather_object(std::numeric_limits<double>::quiet_NaN(), group);
    D9D_ASSERT(std::isnan(all[1].get<double>()), all[1].dump());
  });
}

std::string name_of(const ::testing::TestParamInfo<RankBackend>& info) { return to_string(info.param); }

INSTANTIATE_TEST_SUITE_P(Backends, Gathers, ::testing::Values(RankBackend::kThreads, RankBackend::kGloo), name_of);
INSTANTIATE_TEST_SUITE_P(Nccl, Gathers, ::testing::Values(RankBackend::kNccl), name_of);

}  // namespace
}  // namespace d9d::gather_test
