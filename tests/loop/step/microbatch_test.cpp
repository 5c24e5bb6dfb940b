#include "d9d/loop/step/microbatch.h"

#include <stdexcept>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::microbatch_test {
namespace {

struct State {
  at::Tensor value;
  std::int64_t count = 0;
  static constexpr auto fields() { return record<State>(field("value", &State::value), field("count", &State::count)); }
};

struct Types {
  using Batch = at::Tensor;
  using Input = at::Tensor;
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = microbatch_test::State;
};

at::Tensor with_graph(const at::Tensor& value) { return value.detach().set_requires_grad(true) * 2; }

class Task final : public TrainTask<Types> {
 public:
  ForwardInputs<Types> build_forward_inputs(const at::Tensor& batch) override {
    return {
        .input = batch, .shared = {}, .state = {.value = with_graph(batch), .count = 7}, .num_tokens = batch.numel()};
  }
  LossResult compute_loss(const at::Tensor& output, State& state, const JobSchedule&) override {
    state_in_loss = state;
    state.value = with_graph(output);
    if (fails) throw std::runtime_error("task failed");
    return {.loss = output.sum()};
  }
  void update_metrics(const State& state, const MetricMap&) override { state_in_metrics = state; }

  bool fails = false;
  State state_in_loss = {}, state_in_metrics = {};
};

BuiltModelStage<Types>& doubling() {
  static BuiltModelStage<Types> stage;
  stage.forward = [](const at::Tensor& input, const std::monostate&) { return input * 2; };
  return stage;
}

TEST(Microbatch, Is_inputs_then_a_loss_then_metrics_of_a_state_without_its_graph) {
  Task task;
  Microbatch<Types> microbatch(task, at::ones({2}));
  microbatch.build_inputs();
  EXPECT_EQ(microbatch.num_tokens, 2);
  EXPECT_EQ(microbatch.forward_loss(doubling(), {}, JobSchedule(1)).loss.item<double>(), 4);
  EXPECT_FALSE(task.state_in_loss.value.requires_grad());
  EXPECT_EQ(task.state_in_loss.count, 7);
  microbatch.drop_inputs();
  microbatch.update_metrics({});
  EXPECT_FALSE(task.state_in_metrics.value.requires_grad());
  EXPECT_TRUE(at::equal(task.state_in_metrics.value, at::full({2}, 4.0)));
}

TEST(Microbatch, Has_a_state_without_a_graph_also_where_the_task_throws) {
  Task task;
  task.fails = true;
  Microbatch<Types> microbatch(task, at::ones({2}));
  microbatch.build_inputs();
  EXPECT_THROW((void)microbatch.forward_loss(doubling(), {}, JobSchedule(1)), std::runtime_error);
  microbatch.update_metrics({});
  EXPECT_FALSE(task.state_in_metrics.value.requires_grad());
}

TEST(Microbatch, Of_a_copied_batch_leaves_the_batch_alone) {
  Task task;
  const Microbatch<Types> microbatch(task, at::ones({2}));
  const auto before = microbatch.hash_of_batch();
  const auto copy = microbatch.copy_of_batch();
  EXPECT_EQ(copy->hash_of_batch(), before);
  copy->build_inputs();
  copy->tensors().front().get().zero_();
  EXPECT_EQ(microbatch.hash_of_batch(), before);
}

}  // namespace
}  // namespace d9d::microbatch_test
