// Which tensors of a job a checkpoint contains.
#include "d9d/loop/checkpoint/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/loop/task/shard_over_data.h"
#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/optim/adamw.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::job_state_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// An optimiser whose author forgot the layout of its state.
class Unlaid : public AdamW {
 public:
  using AdamW::AdamW;
  std::map<std::string, DTensor> state_dict() const {
    std::map<std::string, DTensor> state;
    for (const auto& [name, tensor] : AdamW::state_dict()) state.emplace(name, whole_dtensor(tensor.local));
    return state;
  }
};

TEST(JobCheckpoints, Refuse_a_part_of_a_parameters_state_that_is_called_whole) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context(
        {.mesh = {.data_parallel_shard = 2}, .world = borrowed(world), .local_rank = world.rank()});
    const auto model = make_module<toy::Model>();
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
    model->materialize(at::kCPU);
    model->reset_parameters(1);
    model->set_random_clock(std::make_shared<RandomClock>());
    const std::vector<NamedParameter> parameters = trainable_parameters(*model).parameters;
    EXPECT_NO_THROW((void)tensors_of(*model, Optimizer(AdamW(parameters, {}))));
    EXPECT_THAT([&] { (void)tensors_of(*model, Optimizer(Unlaid(parameters, {}))); },
                ThrowsMessage<StateError>(HasSubstr("got it as whole on every rank")));
  });
}

}  // namespace
}  // namespace d9d::test::job_state_test
