// Losses in a dtype that cannot represent their weights.
#include "tests/loop/run/toy_values.h"

namespace d9d::trainer_narrow_loss_test {
namespace {

using toy::all_equal;
using toy::Job;
using toy::samples;

// A loss in bfloat16 with weight 257, which bfloat16 cannot represent.
struct NarrowTask : toy::Task {
  explicit NarrowTask(std::int64_t loss_weight) : weight(loss_weight) {}
  LossResult compute_loss(const Output& output, toy::State& state, const JobSchedule&) override {
    state.output = output;
    return {.loss = output.square().sum(), .loss_weight = at::full({}, weight, at::kLong)};
  }
  std::int64_t weight;
};

TEST(Trainer, Weights_of_a_narrow_loss_divide_its_gradients_as_they_multiply_them) {
  std::vector<std::vector<at::Tensor>> gradients;
  for (const std::int64_t weight : {1, 257}) {
    Job job({{tree_map([](const at::Tensor& leaf) { return leaf.to(at::kBFloat16); }, samples(0, 2))}});
    job.provider.make_model = [] {
      auto model = make_module<toy::Model>();
      model->to(at::kBFloat16);
      return model;
    };
    NarrowTask task(weight);
    Trainer<toy::Types>(job.context, job.config,
                        {.task = task,
                         .model = job.provider,
                         .data = job.provider,
                         .optimizer = *job.optimizer,
                         .lr_scheduler = job.lr_scheduler})
        .train();
    gradients.push_back(job.descent->steps->at(0).gradients);
  }
  EXPECT_TRUE(all_equal(gradients[0], gradients[1]));
}

}  // namespace
}  // namespace d9d::trainer_narrow_loss_test
